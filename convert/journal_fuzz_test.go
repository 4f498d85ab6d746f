package convert

import (
	"bytes"
	"encoding/json"
	"testing"
)

func FuzzRecord(f *testing.F) {
	for _, s := range []string{
		`{"version":1,"fingerprint":"x","save_id":"a","time":"2026-03-14T15:09:26Z"}`, `{"version":1,"report":{}}`, `{"version":2}`,
		`{"version":1,"save_id":"../a"}`, `{"version":1e99}`, `{"version":1,"time":"x"}`, `null`, `[]`, "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := decodeRecord(b)
		if r == nil {
			return
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatalf("encode what was decoded: %v", err)
		}
		again, err := json.Marshal(decodeRecord(text))
		if err != nil || !bytes.Equal(again, text) {
			t.Errorf("%q decoded and encoded again: %s, %v; want %s", b, again, err, text)
		}
	})
}
