package orbax_test

import (
	"context"
	"path"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/orbax"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// unnoticed reports whether a damage of a file can stay unnoticed: Orbax writes no checksum of it.
func unnoticed(d storagetest.Damage) bool {
	base := path.Base(d.File)
	switch {
	case d.At == storagetest.Removed:
		return base == "_METADATA" // a note says so
	case strings.HasPrefix(base, "_"), base == "metadata", base == "checkpoint": // JSON and msgpack
		return d.At >= 0
	case base == ".zarray", base == "zarr.json": // JSON, in folders of arrays
		return d.At >= 0
	}
	return d.At >= 0 && base != "manifest.ocdbt" // chunks
}

// A file that is missing or cut in half, and a flipped bit in a manifest, is an error, or does not change what is loaded.
// A flipped bit in a chunk or in JSON has no checksum.
func TestDamageIsNoticed(t *testing.T) {
	for _, name := range []string{
		"zarr3_ocdbt_mesh2d", "multi_process_zarr2", "multi_process_unmerged", "zarr2_plain_mesh2d", "zarr3_plain_mesh1d",
		"old053_aggregate_mixed", "tree_kinds", "small_data_files_zarr3",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := fixture(t, name, "")
			n, bad := storagetest.RunDamage(t, s, deep.Rounds(60, 100_000), func(ctx context.Context) (storage.Checkpoint, error) { return orbax.Format{}.Open(ctx, s) })
			t.Logf("%d times damaged", n)
			for _, d := range bad {
				if !unnoticed(d) {
					t.Errorf("%+v changes the state without an error", d)
				}
			}
		})
	}
}
