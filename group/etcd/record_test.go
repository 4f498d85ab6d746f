package etcd

import (
	"testing"
)

// FuzzMeeting: a record that is taken is written as one that is the same.
func FuzzMeeting(f *testing.F) {
	for _, s := range []string{`{"generation":7,"size":8,"met":true}`, `{"generation":1}`, `{"generation":1e3}`, `{}`, `null`, ``} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMeeting(b)
		if err != nil {
			return
		}
		if again, err := decodeMeeting([]byte(encode(m))); again != m || err != nil {
			t.Errorf("decodeMeeting of %q = %+v, %v; want %+v", encode(m), again, err, m)
		}
	})
}

func TestHolder(t *testing.T) {
	for value, want := range map[string]string{
		encode(holder{"n3", 4711}):            `process 4711 on "n3"`,
		"":                                    "an unknown process",
		string(make([]byte, maxValue+1)):      "an unknown process",
		`{"host":"line\nbreak","pid":1}`:      `process 1 on "line\nbreak"`,
		`{"host":"n3","pid":1,"more":"here"}`: `process 1 on "n3"`,
	} {
		if got := describeHolder([]byte(value)); got != want {
			t.Errorf("describeHolder(%.40q) = %q; want %q", value, got, want)
		}
	}
	if got := len(encode(self())); got > maxValue {
		t.Errorf("the description of this process has %d bytes; want at most %d", got, maxValue)
	}
}

// Names of jobs cannot lead to another job's keys.
func TestKeysOfJobs(t *testing.T) {
	seen := map[string]string{}
	for _, job := range []string{"a", "a/", "a/meeting", "a/seats", "a%2F", "/a", "..", "a b", "a+b"} {
		for _, key := range []string{keysOf(job).meeting(), keysOf(job).address(1), keysOf(job).slot(1, 0)} {
			if other, ok := seen[key]; ok {
				t.Errorf("jobs %q and %q have both %q", job, other, key)
			}
			seen[key] = job
		}
	}
}
