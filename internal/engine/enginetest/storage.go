package enginetest

import (
	"context"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// Writer is a writer with a hook.
type Writer struct {
	storage.Writer
	Hook Hook
}

// SetUp calls the hook, and then the method.
func (w *Writer) SetUp(ctx context.Context, s storage.Session) error {
	if err := w.Hook.at("writer.SetUp"); err != nil {
		return err
	}
	return w.Writer.SetUp(ctx, s)
}

// PrepareLocalPlan calls the hook, and then the method.
func (w *Writer) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	if err := w.Hook.at("writer.PrepareLocalPlan"); err != nil {
		return nil, err
	}
	return w.Writer.PrepareLocalPlan(ctx, p)
}

// PrepareGlobalPlan calls the hook, and then the method.
func (w *Writer) PrepareGlobalPlan(ctx context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error) {
	if err := w.Hook.at("writer.PrepareGlobalPlan"); err != nil {
		return nil, err
	}
	return w.Writer.PrepareGlobalPlan(ctx, ps)
}

// WriteData calls the hook before the method, and when the files are there.
func (w *Writer) WriteData(ctx context.Context, p *plan.SavePlan, d storage.Resolver) (*storage.WriteResults, error) {
	if err := w.Hook.at("writer.WriteData"); err != nil {
		return nil, err
	}
	r, err := w.Writer.WriteData(ctx, p, d)
	if err := w.Hook.at("writer.HasWritten"); err != nil {
		return nil, err
	}
	return r, err
}

// Finish calls the hook before the method, and when the checkpoint is there and
// nobody knows.
func (w *Writer) Finish(ctx context.Context, md *meta.Metadata, rs []*storage.WriteResults) error {
	if err := w.Hook.at("writer.Finish"); err != nil {
		return err
	}
	err := w.Writer.Finish(ctx, md, rs)
	if err := w.Hook.at("writer.HasFinished"); err != nil {
		return err
	}
	return err
}

// Reader is a reader with a hook.
type Reader struct {
	storage.Reader
	Hook Hook
}

// ReadMetadata calls the hook, and then the method.
func (r *Reader) ReadMetadata(ctx context.Context) (*meta.Metadata, error) {
	if err := r.Hook.at("reader.ReadMetadata"); err != nil {
		return nil, err
	}
	return r.Reader.ReadMetadata(ctx)
}

// SetUp calls the hook, and then the method.
func (r *Reader) SetUp(ctx context.Context, md *meta.Metadata, s storage.Session) error {
	if err := r.Hook.at("reader.SetUp"); err != nil {
		return err
	}
	return r.Reader.SetUp(ctx, md, s)
}

// PrepareLocalPlan calls the hook, and then the method.
func (r *Reader) PrepareLocalPlan(ctx context.Context, p *plan.LoadPlan) (*plan.LoadPlan, error) {
	if err := r.Hook.at("reader.PrepareLocalPlan"); err != nil {
		return nil, err
	}
	return r.Reader.PrepareLocalPlan(ctx, p)
}

// PrepareGlobalPlan calls the hook, and then the method.
func (r *Reader) PrepareGlobalPlan(ctx context.Context, ps []*plan.LoadPlan) ([]*plan.LoadPlan, error) {
	if err := r.Hook.at("reader.PrepareGlobalPlan"); err != nil {
		return nil, err
	}
	return r.Reader.PrepareGlobalPlan(ctx, ps)
}

// ReadData calls the hook before the method and after it.
func (r *Reader) ReadData(ctx context.Context, p *plan.LoadPlan, dst storage.Receiver) (storage.ReadStats, error) {
	if err := r.Hook.at("reader.ReadData"); err != nil {
		return storage.ReadStats{}, err
	}
	stats, err := r.Reader.ReadData(ctx, p, dst)
	if err := r.Hook.at("reader.HasRead"); err != nil {
		return storage.ReadStats{}, err
	}
	return stats, err
}
