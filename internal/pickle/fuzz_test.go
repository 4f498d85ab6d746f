package pickle_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/pickle"
)

// small bounds what the fuzzers build, so that they see many pickles.
var small = &pickle.Limits{Depth: 50, Memo: 1 << 12, Objects: 1 << 12, Bytes: 1 << 18}

func addSamples(f *testing.F) {
	for _, s := range samples(f) {
		if b := s.bytes(f); len(b) < 400 {
			f.Add(b)
		}
	}
	f.Add(laughs(20))
	f.Add([]byte("]q\x00h\x00a."))
	f.Add([]byte("\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R."))
	f.Add([]byte("\x80\x02(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ."))
}

// Any bytes decode or are refused; nothing panics, and nothing is larger than
// the limits.
func FuzzDecode(f *testing.F) {
	addSamples(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		o := &pickle.DecodeOptions{Limits: small, Persistent: func(id any) (any, error) { return id, nil }}
		_, n, err := pickle.DecodePrefix(data, o)
		if err == nil && (n <= 0 || n > len(data)) {
			t.Errorf("a pickle of %d bytes in %d", n, len(data))
		}
	})
}

// What decodes encodes, or is refused; what was encoded decodes, and once more
// the same way.
func FuzzRoundTrip(f *testing.F) {
	addSamples(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := pickle.Decode(data, &pickle.DecodeOptions{Limits: small})
		if err != nil {
			return
		}
		for p := 2; p <= 5; p++ {
			o := &pickle.EncodeOptions{Protocol: p, Allow: func(string, string) bool { return true }}
			b, err := pickle.Encode(v, o)
			if err != nil {
				return
			}
			once, err := pickle.Decode(b, nil)
			if err != nil {
				t.Fatalf("protocol %d: %q became %q: %v", p, data, b, err)
			}
			if b, err = pickle.Encode(once, o); err != nil {
				t.Fatalf("protocol %d: the second time: %v", p, err)
			}
			twice, err := pickle.Decode(b, nil)
			if err != nil {
				t.Fatalf("protocol %d: the second time: %v", p, err)
			}
			if diff := cmp.Diff(once, twice, same); diff != "" {
				t.Fatalf("protocol %d: the second time (-once +twice):\n%s", p, diff)
			}
		}
	})
}
