package run

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestLog(t *testing.T) {
	dir := t.TempDir()
	r := must.Get(Open(t.Context(), dir, ""))(t)
	empty := must.Get(r.Log(nil, Settings{}, false))(t)
	if text := string(must.Get(json.Marshal(empty))(t)); !strings.Contains(text, `"checkpoints":[]`) || !strings.Contains(text, `"warnings":[]`) {
		t.Errorf("the log of an empty run is %s; want empty lists", text)
	}
	for step := range int64(3) {
		save(t, dir, step)
	}
	all := must.Get(r.Checkpoints(t.Context()))(t)
	plain := must.Get(r.Log(all, Settings{}, false))(t)
	if len(plain.Checkpoints) != 3 || plain.Bytes == 0 || plain.Removable != 0 || plain.Checkpoints[0].Verdict != nil {
		t.Errorf("Log without a policy = %+v; want 3 checkpoints that nothing judges", plain)
	}
	judged := must.Get(r.Log(all, Settings{Keep: must.Get(ParsePolicy("last 1"))(t), Remote: "s3://user:secret@bucket/a?key=secret"}, false))(t)
	if judged.Removable != 2 || judged.RemovableBytes == 0 || judged.RemovableBytes >= judged.Bytes {
		t.Errorf("Log with \"last 1\": %d checkpoints of %d bytes can be removed; want 2, and less than %d bytes", judged.Removable, judged.RemovableBytes, judged.Bytes)
	}
	for i, want := range []Outcome{WouldRemove, WouldRemove, Kept} {
		c := judged.Checkpoints[i]
		if c.Verdict == nil || c.Verdict.Outcome != want || c.Copies != "local" || c.RemoteVerdict != nil {
			t.Errorf("checkpoint %d is %+v; want the verdict %q", i, c, want)
		}
	}
	if text := string(must.Get(json.Marshal(judged))(t)); strings.Contains(text, "secret") {
		t.Errorf("the log has a secret: %s", text)
	}
}
