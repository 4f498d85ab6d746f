package storage

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

// PassWriter passes every call on to another writer. Embed it to override some of the
// methods:
//
//	type counting struct{ storage.PassWriter }
//
//	func (c *counting) WriteData(…) … { …; return c.Writer.WriteData(ctx, p, data) }
//
// If Writer is nil, SetUp and Abort have no effect and the plans stay as they are, so that a
// writer of one's own has to implement only WriteData and Finish, and Abort if it leaves
// files.
type PassWriter struct {
	Writer Writer
	// AddsData says that the type which embeds PassWriter adds storage data to the results
	// of Writer. PrepareLocalPlan then returns an error that wraps ErrNotRepresentable if
	// the format has no place for it. Without AddsData, Finish returns the error, after all
	// ranks have written.
	AddsData bool
}

var (
	_ Writer          = PassWriter{}
	_ ValueChecker    = PassWriter{}
	_ MetadataChecker = PassWriter{}
	_ Publisher       = PassWriter{}
	_ RoomMaker       = PassWriter{}
	_ DataKeeper      = PassWriter{}
)

// SetUp begins a save.
func (w PassWriter) SetUp(ctx context.Context, s Session) error {
	if w.Writer == nil {
		return nil
	}
	return w.Writer.SetUp(ctx, s)
}

// PrepareLocalPlan returns the other writer's plan, or p.
func (w PassWriter) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	if w.Writer == nil {
		return p, nil
	}
	if w.AddsData && len(p.Items) > 0 && !w.KeepsStorageData() {
		return nil, &NotRepresentable{p.Items[0].FQN(), "the format has no place for storage data"}
	}
	return w.Writer.PrepareLocalPlan(ctx, p)
}

// KeepsStorageData implements DataKeeper: it reports whether the other writer does so. A
// writer of one's own keeps its data.
func (w PassWriter) KeepsStorageData() bool {
	k, ok := w.Writer.(DataKeeper)
	return w.Writer == nil || ok && k.KeepsStorageData()
}

// PrepareGlobalPlan returns the other writer's plans, or ps.
func (w PassWriter) PrepareGlobalPlan(ctx context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error) {
	if w.Writer == nil {
		return ps, nil
	}
	return w.Writer.PrepareGlobalPlan(ctx, ps)
}

// WriteData lets the other writer write.
func (w PassWriter) WriteData(ctx context.Context, p *plan.SavePlan, data Resolver) (*WriteResults, error) {
	if w.Writer == nil {
		return nil, notImplemented("PassWriter", "WriteData")
	}
	return w.Writer.WriteData(ctx, p, data)
}

// Finish lets the other writer commit.
func (w PassWriter) Finish(ctx context.Context, md *meta.Metadata, results []*WriteResults) error {
	if w.Writer == nil {
		return notImplemented("PassWriter", "Finish")
	}
	return w.Writer.Finish(ctx, md, results)
}

// Abort lets the other writer remove its files.
func (w PassWriter) Abort(ctx context.Context) error {
	if w.Writer == nil {
		return nil
	}
	return w.Writer.Abort(ctx)
}

// CheckValue implements ValueChecker, if the other writer does.
func (w PassWriter) CheckValue(it *plan.WriteItem, data []byte) error {
	if c, ok := w.Writer.(ValueChecker); ok {
		return c.CheckValue(it, data)
	}
	return nil
}

// CheckMetadata implements MetadataChecker, if the other writer does.
func (w PassWriter) CheckMetadata(md *meta.Metadata) error {
	if c, ok := w.Writer.(MetadataChecker); ok {
		return c.CheckMetadata(md)
	}
	return nil
}

// Published implements Publisher, if the other writer does. Otherwise it returns nil.
func (w PassWriter) Published() []string {
	if p, ok := w.Writer.(Publisher); ok {
		return p.Published()
	}
	return nil
}

// MakeRoom implements RoomMaker, if the other writer does.
func (w PassWriter) MakeRoom(ctx context.Context, bytes int64) (done func()) {
	if r, ok := w.Writer.(RoomMaker); ok {
		return r.MakeRoom(ctx, bytes)
	}
	return func() {}
}

// PlanOptions names the other writer, so that plans which it has prepared are not reused
// for a third one.
func (w PassWriter) PlanOptions() string {
	if p, ok := w.Writer.(interface{ PlanOptions() string }); ok {
		return fmt.Sprintf("%T %s", w.Writer, p.PlanOptions())
	}
	return fmt.Sprintf("%T", w.Writer)
}

// PassReader passes every call on to another reader. Embed it to override some of the
// methods. If Reader is nil, SetUp has no effect and the plans stay as they are, so that a
// reader of one's own has to implement only ReadMetadata and ReadData.
type PassReader struct{ Reader Reader }

var _ Reader = PassReader{}

// ReadMetadata lets the other reader read the description.
func (r PassReader) ReadMetadata(ctx context.Context) (*meta.Metadata, error) {
	if r.Reader == nil {
		return nil, notImplemented("PassReader", "ReadMetadata")
	}
	return r.Reader.ReadMetadata(ctx)
}

// SetUp begins a load.
func (r PassReader) SetUp(ctx context.Context, md *meta.Metadata, s Session) error {
	if r.Reader == nil {
		return nil
	}
	return r.Reader.SetUp(ctx, md, s)
}

// PrepareLocalPlan returns the other reader's plan, or p.
func (r PassReader) PrepareLocalPlan(ctx context.Context, p *plan.LoadPlan) (*plan.LoadPlan, error) {
	if r.Reader == nil {
		return p, nil
	}
	return r.Reader.PrepareLocalPlan(ctx, p)
}

// PrepareGlobalPlan returns the other reader's plans, or ps.
func (r PassReader) PrepareGlobalPlan(ctx context.Context, ps []*plan.LoadPlan) ([]*plan.LoadPlan, error) {
	if r.Reader == nil {
		return ps, nil
	}
	return r.Reader.PrepareGlobalPlan(ctx, ps)
}

// ReadData lets the other reader read.
func (r PassReader) ReadData(ctx context.Context, p *plan.LoadPlan, dst Receiver) (ReadStats, error) {
	if r.Reader == nil {
		return ReadStats{}, notImplemented("PassReader", "ReadData")
	}
	return r.Reader.ReadData(ctx, p, dst)
}

// notImplemented is the error of a method that the type which embeds a pass-through
// type has to implement.
func notImplemented(in, method string) error {
	return fmt.Errorf("%w: %s has nothing to pass %s on to: implement it, or set the field of %s", plan.ErrProtocol, in, method, in)
}
