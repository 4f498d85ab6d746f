package engine

import (
	"math"

	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/plan"
)

// loadCodec carries load messages.
type loadCodec struct{}

func (loadCodec) Encode(m loadMessage) ([]byte, error) {
	b, err := plan.LoadPlanCodec{}.Encode(m.plan)
	if err != nil {
		return nil, err
	}
	w := wire.Writer{B: make([]byte, 0, len(b)+64)}
	w.String(m.saveID)
	w.Bytes(b)
	w.Bool(m.takes)
	w.Bool(m.replicated)
	w.Bool(m.share != nil)
	if m.share == nil {
		return w.B, nil
	}
	if b, err = (plan.ShareCodec{}).Encode(m.share); err != nil {
		return nil, err
	}
	w.Uvarint(uint64(m.tag))
	w.Bytes(b)
	return w.B, nil
}

func (loadCodec) Decode(b []byte) (loadMessage, error) {
	r := wire.NewReader(b)
	m := loadMessage{saveID: r.String()}
	body := r.Bytes()
	m.takes = r.Bool()
	m.replicated = r.Bool()
	shared := r.Bool()
	var share []byte
	if shared {
		m.tag = r.CountMax(math.MaxInt)
		share = r.Bytes()
	}
	if err := r.Done(); err != nil {
		return m, err
	}
	var err error
	if m.plan, err = (plan.LoadPlanCodec{}).Decode(body); err == nil && shared {
		m.share, err = plan.ShareCodec{}.Decode(share)
	}
	return m, err
}
