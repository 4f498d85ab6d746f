package examples

import (
	"context"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/tensor"
)

// publishVersions trains, and publishes the weights after each step. A version has the
// changes since the one before.
func publishVersions(ctx context.Context, address string, model *tensor.Tensor, versions int64, train func()) error {
	keep, err := cairn.ParsePolicy("last 4")
	if err != nil {
		return err
	}
	run, err := cairn.NewRun(address, &cairn.RunOptions{Keep: keep, Remember: true})
	if err != nil {
		return err
	}
	defer run.Close(ctx)
	for version := range versions {
		train()
		if _, err := run.Save(ctx, cairn.State{"model": model}, &cairn.SaveOptions{Step: &version}); err != nil {
			return err
		}
	}
	return nil
}

// followVersions brings a model in use from version to version, until it has the last one.
func followVersions(ctx context.Context, address string, model *tensor.Tensor, last int64, pause func(change func() error) error) error {
	follower, err := cairn.Follow(address, &cairn.FollowOptions{CacheBytes: 8 << 30})
	if err != nil {
		return err
	}
	defer follower.Close()
	for version := int64(-1); version < last; {
		if _, err := follower.Wait(ctx); err != nil {
			return err
		}
		next, err := follower.Prepare(ctx, cairn.State{"model": model}, cairn.Newest) // the model stays as it is
		if err != nil {
			return err
		}
		err = pause(func() error { // while the model is not in use
			report, err := next.Commit()
			if err == nil {
				version = report.Version
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func TestPublishAndFollowVersions(t *testing.T) {
	run, trained, served := t.TempDir(), floats([]int64{3}, 0, 0, 0), floats([]int64{3}, 0, 0, 0)
	done := make(chan error, 1)
	go func() {
		done <- followVersions(t.Context(), run, served, 4, func(change func() error) error { return change() })
	}()
	if err := publishVersions(t.Context(), run, trained, 5, func() { values(trained)[1]++ }); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || !slices.Equal(values(served), []float32{0, 5, 0}) {
		t.Errorf("the server has %v, %v; want version 4", values(served), err)
	}
}
