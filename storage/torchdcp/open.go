package torchdcp

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
)

// Open opens the checkpoint at the root of store: from a .metadata file, or
// else from the ranks' own files __0.metadata, __1.metadata and so on together.
// If the store has neither, the error wraps storage.ErrIncomplete if it has data
// files, and storage.ErrNotFound otherwise. Missing ranks are an ErrIncomplete
// too, and invalid metadata is a storage.ErrCorrupt. If Megatron's common.pt lies
// beside the metadata, its content is a part of the checkpoint. The content of the object
// common_state, which newer releases of Megatron write instead, has the same names.
//
// A missing or truncated data file is an error when it is needed, and a problem in
// the report of Verify, so that the other files can be read.
func (f Format) Open(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
	src, err := reading.Watch(ctx, store, []string{dcpfiles.MetadataName}, func(ctx context.Context) (*reading.Source, error) {
		return f.describe(ctx, store)
	})
	if err != nil {
		return nil, err
	}
	return reading.Open(store, src), nil
}

// describe reads everything about the checkpoint except its data.
func (f Format) describe(ctx context.Context, store blob.Store) (*reading.Source, error) {
	d, err := files.Describe(ctx, store)
	if err != nil {
		return nil, err
	}

	a := &archive{store: store, transforms: f.Transforms, opened: map[recordAt]*torchsave.Tensor{}, good: map[recordAt]bool{}}
	if a.sizes, err = sizesOf(ctx, store, d.Data); err != nil {
		return nil, err
	}

	for _, name := range d.Data {
		d.Files = append(d.Files, storage.File{Name: name, Size: a.sizes[name], Unsummed: true})
	}

	src := &reading.Source{Metadata: d.Metadata, Files: d.Files, Place: a.chunk, Places: a.chunks, Value: a.value, Check: a.checkFile}
	_, inside := src.Metadata.Find(commonState)
	if src, err = withCommonState(ctx, store, src); err != nil {
		return nil, err
	}

	src, found, err := withCommon(ctx, store, src)
	if err != nil || found || inside {
		return src, err
	}
	return withoutCommon(ctx, store, src)
}

// sizesOf returns the sizes of the files that exist. names are
// sorted.
func sizesOf(ctx context.Context, store blob.Store, names []string) (map[string]int64, error) {
	sizes := make(map[string]int64, len(names))
	if len(names) == 0 {
		return sizes, nil
	}

	for info, err := range store.List(ctx, commonPrefix(names[0], names[len(names)-1])) {
		if err != nil {
			return nil, err
		}
		if _, ok := slices.BinarySearch(names, info.Name); ok {
			sizes[info.Name] = info.Size
		}
	}

	return sizes, nil
}

// commonPrefix returns the common prefix of a and b.
func commonPrefix(a, b string) string {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return strings.ToValidUTF8(a[:n], "") // no half of a letter at the end
}

// CommonName is the file of torch.save that Megatron writes beside a checkpoint
// with everything that is not sharded: arguments, the iteration, schedulers.
const CommonName = "common.pt"

// withCommon returns src together with the content of CommonName, if that file
// exists. A name that src has too gets a number behind it.
func withCommon(ctx context.Context, store blob.Store, src *reading.Source) (with *reading.Source, found bool, err error) {
	common, err := torchfile.Describe(ctx, store, CommonName, src.Metadata)
	if errors.Is(err, fs.ErrNotExist) {
		return src, false, nil
	}
	if errors.Is(err, storage.ErrNotFound) { // it is not a file of torch.save any more
		return nil, false, reading.Damaged(CommonName, "%v", err)
	}
	if err != nil {
		return nil, false, err
	}

	fitPaths(src.Metadata, common.Metadata)
	return reading.Join(src, common), true, nil
}

// maxConfig bounds the size of ConfigName.
const maxConfig = 1 << 20

// withoutCommon returns src, which has neither CommonName nor commonState. If ConfigName shows
// that Megatron has written the checkpoint, the file is missing.
func withoutCommon(ctx context.Context, store blob.Store, src *reading.Source) (*reading.Source, error) {
	config, err := blob.ReadAll(ctx, store, ConfigName, maxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return src, nil
	}
	if err != nil {
		return nil, err
	}
	if !bytes.Contains(config, []byte(`"sharded_backend"`)) {
		return src, nil
	}

	lost := reading.LostFiles{CommonName: reading.Damaged(CommonName, "the file is missing")}
	src.Problems, err = lost.Note(src.Metadata, src.Metadata.Missing, "")
	return src, err
}

// commonState is the name of the object that Megatron writes since 0.20 in place of
// CommonName.
const commonState = "common_state/shard_0_1"

// withCommonState returns src with the content of the object commonState in place of the
// object, under the names that it would have in CommonName. An object that cannot be read
// stays an object, so that the other names can be read.
func withCommonState(ctx context.Context, store blob.Store, src *reading.Source) (*reading.Source, error) {
	i := slices.IndexFunc(src.Metadata.Entries, func(e meta.Entry) bool { return e.FQN == commonState })
	if i < 0 || src.Metadata.Entries[i].Bytes == nil || isPacked(&src.Metadata.Entries[i].Bytes.Loc) {
		return src, nil
	}

	object := src.Metadata.Entries[i]
	md := *src.Metadata
	md.Entries = slices.Delete(slices.Clone(md.Entries), i, i+1)
	loc := &object.Bytes.Loc
	common, err := torchfile.DescribeRecord(ctx, store, loc.File, loc.Offset, loc.Length, &md)
	if unreadable(err) != nil && !errors.Is(err, storage.ErrNotFound) {
		return nil, err
	}
	if err != nil || common == nil {
		return src, nil
	}

	fitPaths(&md, common.Metadata)
	rest, check := *src, src.Check
	rest.Metadata = &md
	rest.Check = func(ctx context.Context, c *reading.FileCheck) (int64, error) {
		if c.File.Name != loc.File {
			return check(ctx, c)
		}

		// The content is checked as one record. A record that is damaged so that it does
		// not open would otherwise be found when its value is read.
		c.Chunks = slices.DeleteFunc(slices.Clone(c.Chunks), func(id reading.ChunkID) bool {
			_, ok := common.Metadata.Find(id.Entry.FQN)
			return ok
		})

		c.Chunks = append(c.Chunks, reading.ChunkID{Entry: &object})
		unsummed, err := check(ctx, c)
		if err == nil {
			if _, err = torchfile.DescribeRecord(ctx, store, loc.File, loc.Offset, loc.Length, &md); unreadable(err) == nil && err != nil {
				c.Problem(commonState, err.Error())
				err = nil
			}
		}
		return unsummed, err
	}
	return reading.Join(&rest, common), nil
}

// fitPaths drops the paths of common that contradict the paths of md, as one through a
// tensor does: one state must hold both.
func fitPaths(md, common *meta.Metadata) {
	state := plan.State{}
	for i := range md.Entries {
		if e := &md.Entries[i]; e.Path.FQN() == e.FQN {
			_ = plan.Place(state, e.Path, true) // contradictions of the checkpoint are no reason to refuse it here
		}
	}

	inside, dropped := common.Inside(), map[string]bool{}
	for i := range common.Entries { // a value before the tensors inside of it
		e := &common.Entries[i]
		in, ok := inside[e.FQN]
		if ok && !dropped[in] {
			continue
		}
		if ok || plan.Place(state, e.Path, true) != nil {
			e.Path, dropped[e.FQN] = nil, true
		}
	}
}
