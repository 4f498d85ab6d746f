package dcpmeta_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cairn-ckpt/cairn/internal/dcpmeta"
	"github.com/cairn-ckpt/cairn/meta"
)

func TestEncodedFixturesDecodeToTheSame(t *testing.T) {
	for _, c := range withDocuments(t) {
		t.Run(c.Name, func(t *testing.T) {
			want := decodeAll(t, c.Dir)
			b, err := dcpmeta.Encode(want)
			if err != nil {
				t.Fatalf("Encode: %v", err)
			}
			got, err := dcpmeta.Decode(b)
			if err != nil {
				t.Fatalf("Decode: %v", err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

var _ meta.Metadata
