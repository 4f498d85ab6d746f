package protocol

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

func sampleMessage(tb testing.TB, share *plan.SharedReads) []byte {
	b := must.Get(loadCodec{}.Encode(loadMessage{saveID: "id", canShare: share == nil, share: share, tag: len("tag"), plan: &plan.LoadPlan{
		Items: []plan.ReadItem{{
			Kind: plan.KindTensor, Dest: meta.Index{FQN: "d", Offset: []int64{1}}, DestOffsets: []int64{2},
			Source: meta.Index{FQN: "s", Offset: []int64{3}, Hint: 4}, SourceOffsets: []int64{5}, Lengths: []int64{6},
		}},
		PlannerData: []byte(`["s"]`),
	}}))(tb)
	return b
}

var sampleShare = &plan.SharedReads{Pieces: []plan.Piece{{ID: 7, Rows: [2]int64{1, 3}, Reader: 2, To: []int{0, 1}}}}

func TestLoadCodecRoundTrip(t *testing.T) {
	for _, share := range []*plan.SharedReads{nil, sampleShare} {
		b := sampleMessage(t, share)
		m, err := loadCodec{}.Decode(b)
		if err != nil || m.saveID != "id" || len(m.plan.Items) != 1 || m.plan.Items[0].Source.Hint != 4 || m.canShare != (share == nil) {
			t.Errorf("Decode = %+v, %v", m, err)
		}
		if d := cmp.Diff(share, m.share); d != "" || share != nil && m.tag != 3 {
			t.Errorf("Decode: tag %d, share (-want +got):\n%s", m.tag, d)
		}
		for n := range b {
			if _, err := (loadCodec{}).Decode(b[:n]); err == nil {
				t.Errorf("Decode of %d bytes of %d = nil; want an error", n, len(b))
			}
		}
	}
}

func FuzzDecodeLoadMessage(f *testing.F) {
	f.Add(sampleMessage(f, nil))
	f.Add(sampleMessage(f, sampleShare))
	f.Add([]byte{0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := loadCodec{}.Decode(b)
		if err != nil {
			if !errors.Is(err, wire.ErrMalformed) {
				t.Errorf("Decode = %v; want %v", err, wire.ErrMalformed)
			}
			return
		}
		c, err := loadCodec{}.Encode(m)
		if err != nil {
			t.Fatalf("Encode of what was decoded = %v", err)
		}
		again, err := loadCodec{}.Decode(c)
		if diff := cmp.Diff(m, again, cmp.AllowUnexported(loadMessage{})); err != nil || diff != "" {
			t.Errorf("decoded again: %v (-first +second):\n%s", err, diff)
		}
	})
}

func TestHeadRoundTrip(t *testing.T) {
	large := &piece{id: 3, bytes: inlineBytes + 1, crc: 9}
	b := encodeHead([]*piece{{id: 1 << 40, bytes: 2, crc: 5, body: []byte("ab")}, large})
	want := []headEntry{{id: 1 << 40, bytes: 2, crc: 5, body: []byte("ab")}, {id: 3, bytes: inlineBytes + 1, crc: 9}}
	firstHead := len(encodeHead([]*piece{{id: 1 << 40, bytes: 2, crc: 5, body: []byte("ab")}})) // is one too
	got, err := decodeHead(b)
	if d := cmp.Diff(want, got, cmp.AllowUnexported(headEntry{})); d != "" || err != nil {
		t.Errorf("decodeHead, %v (-want +got):\n%s", err, d)
	}
	if _, err := decodeHead(append(b, 0)); !errors.Is(err, wire.ErrMalformed) {
		t.Errorf("decodeHead with a byte after a large piece = %v; want %v", err, wire.ErrMalformed)
	}
	for n := range b[:len(b)-1] {
		_, err := decodeHead(b[:n])
		if !errors.Is(err, wire.ErrMalformed) && n != firstHead {
			t.Errorf("decodeHead of %d bytes of %d = %v; want %v", n, len(b), err, wire.ErrMalformed)
		}
		if none := err != nil && strings.Contains(err.Error(), "lists no piece"); none != (n == 0) {
			t.Errorf("decodeHead of %d bytes = %v; want ErrMalformed if and only if it has no piece", n, err)
		}
	}
}

func FuzzDecodeHead(f *testing.F) {
	f.Add(encodeHead([]*piece{{id: 1, bytes: 2, body: []byte("ab")}, {id: 3, bytes: inlineBytes + 1}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		head, err := decodeHead(b)
		if err != nil {
			if !errors.Is(err, wire.ErrMalformed) {
				t.Errorf("decodeHead = %v; want %v", err, wire.ErrMalformed)
			}
			return
		}
		var batch []*piece
		for _, c := range head {
			batch = append(batch, &piece{id: c.id, bytes: c.bytes, crc: c.crc, body: c.body})
		}
		if got := encodeHead(batch); string(got) != string(b) {
			t.Errorf("encoded again: %x; want %x", got, b)
		}
	})
}
