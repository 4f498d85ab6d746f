package dcpfiles_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
)

// Any bytes are a document or are refused. A document is valid, decodes after it was encoded,
// and stays the same from then on.
func FuzzDecode(f *testing.F) {
	for _, n := range []names{torchNames, torchOldNames, hyperNames} {
		for p := 2; p <= 5; p++ {
			f.Add(newTree(n).bytes(f, p))
		}
	}
	for _, c := range withDocuments(f) {
		for _, b := range documents(f, c.Dir) {
			if len(b) < 3000 {
				f.Add(b)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := dcpfiles.Decode(t.Context(), data)
		if err != nil {
			return
		}
		must.Do(t, d.Meta.Validate())
		once := again(t, d)
		if once == nil {
			return // it has parts that only its own writer can encode
		}
		if diff := cmp.Diff(once, again(t, once), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("encoded twice (-once +twice):\n%s", diff)
		}
	})
}

// again encodes and decodes d; nil if it cannot be encoded.
func again(t *testing.T, d *dcpfiles.Document) *dcpfiles.Document {
	t.Helper()
	b, err := dcpfiles.Encode(d)
	if err != nil {
		return nil
	}
	out, err := dcpfiles.Decode(t.Context(), b)
	if err != nil {
		t.Fatalf("encoded: %v", err)
	}
	return out
}
