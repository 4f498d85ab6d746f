package run

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
)

func TestSettings(t *testing.T) {
	ctx, s := t.Context(), new(mem.Store)
	if got := must.Get(ReadSettings(ctx, s))(t); !reflect.DeepEqual(got, Settings{}) {
		t.Errorf("settings that are not there: %+v", got)
	}
	want := Settings{ID: "a-run", Remote: "s3://bucket/run", Keep: Policy{Rules: []Rule{Last(3)}, AtMost: 1e9}}
	must.Do(t, WriteSettings(ctx, s, want))
	if got := must.Get(ReadSettings(ctx, s))(t); !reflect.DeepEqual(got, want) {
		t.Errorf("the settings are %+v; want %+v", got, want)
	}
	const file = "{\n  \"version\": 1,\n  \"crc32c\": \"293127a1\",\n  \"id\": \"a-run\",\n  \"remote\": \"s3://bucket/run\",\n  \"keep\": \"last 3, at most 1 GB\"\n}\n"
	if got := must.Get(blob.ReadAll(ctx, s, SettingsFile, 1000))(t); string(got) != file {
		t.Errorf("the file is %s; want %s", got, file)
	}
	must.Do(t, WriteSettings(ctx, s, Settings{}))
	if got := must.Get(ReadSettings(ctx, s))(t).ID; got != "a-run" {
		t.Errorf("the id becomes %q; want the one that is there", got)
	}
	if err := WriteSettings(ctx, s, Settings{Keep: Policy{Rules: []Rule{Last(0)}}}); !errors.Is(err, ErrPolicy) {
		t.Errorf("a bad policy: %v", err)
	}
}

// A file has no secrets of an address, and keeps the parts that are needed to open it.
func TestSettingsHaveNoSecrets(t *testing.T) {
	for address, want := range map[string]string{
		"":                "",
		"/data/run":       "/data/run",
		"data/run?x":      "data/run?x",
		"s3://bucket/run": "s3://bucket/run",
		"s3://key:secret@bucket/run?region=eu&token=abc&endpoint=https://minio:9000": "s3://bucket/run?endpoint=https%3A%2F%2Fminio%3A9000&region=eu",
		"s3://bucket/run?endpoint=https://key:secret@minio":                          "s3://bucket/run",
		"az://container/run?sig=abc#part":                                            "az://container/run",
		"s3://bucket/%zz?a=b":                                                        "s3://…",
	} {
		if got := withoutSecrets(address); got != want {
			t.Errorf("withoutSecrets(%q) = %q; want %q", address, got, want)
		}
	}
}

func TestDamagedSettings(t *testing.T) {
	for text, want := range map[string]error{
		"":                                   storage.ErrCorrupt,
		`{"version":1,"keeep":"all"}`:        storage.ErrCorrupt,
		`{"version":1,"keep":"lats"}`:        ErrPolicy,
		`{"version":1,"keep_remote":",`:      storage.ErrCorrupt,
		`{"version":1,"keep_remote":"last"}`: ErrPolicy,
		`{"version":1,"id":"a/b"}`:           storage.ErrCorrupt,
		`{"version":7}`:                      storage.ErrVersion,
		`{"version":7,"keeep":"all"}`:        storage.ErrVersion,
	} {
		s := new(mem.Store)
		must.Get(blob.WriteAll(t.Context(), s, SettingsFile, []byte(text), nil))(t)
		if _, err := ReadSettings(t.Context(), s); !errors.Is(err, want) {
			t.Errorf("ReadSettings of %q: %v; want %v", text, err, want)
		} else if advice := strings.Contains(err.Error(), "'cairn settings'"); advice == errors.Is(err, storage.ErrVersion) {
			t.Errorf("ReadSettings of %q: %v; want advice that helps", text, err)
		}
	}
}

func FuzzDecodeSettings(f *testing.F) {
	for _, text := range []string{"", "{}", `{"version":1,"remote":"s3://b/r?region=x","keep":"last 3","keep_remote":"every day"}`, `{"version":1,"keep":"x"}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := decodeSettings(data)
		if err != nil {
			return
		}
		again, err := decodeSettings(must.Get(s.encode())(t))
		if err != nil || !reflect.DeepEqual(again.Keep, s.Keep) || !reflect.DeepEqual(again.KeepRemote, s.KeepRemote) || again.Remote != withoutSecrets(s.Remote) {
			t.Errorf("%+v becomes %+v, %v", s, again, err)
		}
	})
}
