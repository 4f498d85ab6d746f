package convert

import (
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
)

const (
	// sampleBytes is how much is read at once of a file without a checksum.
	sampleBytes = 4 << 10
	// maxSamples bounds the number of such reads of all files, and fileSamples
	// that of one.
	maxSamples  = 384
	fileSamples = 32
)

// source writes what tells the source from others whose files have the same
// names, sizes and times: where it is, which files of the file system they are,
// and some bytes of those that have no checksum. What the store cannot tell is
// left out.
func (f *fingerprinter) source(ctx context.Context, j *Job) error {
	if j.opts.Source == nil {
		return nil
	}
	at, local := whereIs(j.opts.Source)
	f.text(at)
	for _, s := range j.seen {
		f.numbers(s.size, s.time.UnixNano())
		if local {
			f.numbers(s.inode(at)...)
		}
	}
	sums, err := j.samples(ctx)
	for _, sum := range sums {
		f.text(string(sum))
	}
	return err
}

// whereIs returns where a store is, whatever way leads there, and whether that is
// a path of the file system.
func whereIs(s blob.Store) (string, bool) {
	at := s.String()
	path, err := filepath.EvalSymlinks(at)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return at, false
	}
	return path, true
}

// inode returns what the file system says of the file, of a store at a path, if
// it is the file that was seen.
func (s *seenFile) inode(at string) []int64 {
	path := at // a store may be one file alone
	if fi, err := os.Stat(at); err == nil && fi.IsDir() {
		path = filepath.Join(at, filepath.FromSlash(s.name))
	}
	fi, err := os.Stat(path)
	if err != nil || fi.Size() != s.size || !fi.ModTime().Equal(s.time) {
		return nil
	}
	return inode(path)
}

// samples returns a digest of some bytes of each of the source's files that have
// no checksum; of very many files some are left out.
func (j *Job) samples(ctx context.Context) ([][]byte, error) {
	var files []string
	for _, f := range j.src.Files() {
		if f.Unsummed {
			files = append(files, f.Name)
		}
	}
	if len(files) == 0 {
		return nil, nil
	}
	each := max(1, min(maxSamples/len(files), fileSamples))
	step := (len(files) + maxSamples - 1) / maxSamples
	sums := make([][]byte, len(files))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(j.opts.Parallel)
	for i := 0; i < len(files); i += step {
		g.Go(func() (err error) {
			sums[i], err = sample(gctx, j.opts.Source, files[i], each)
			return err
		})
	}
	return sums, g.Wait()
}

// sample returns a digest of so many blocks of a file, from its beginning to its
// end, or of the middle one if it is to be one.
func sample(ctx context.Context, s blob.Store, name string, blocks int) ([]byte, error) {
	r, err := s.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	h := sha256.New()
	buf := make([]byte, min(sampleBytes, r.Size()))
	last := r.Size() - int64(len(buf)) // where the last block begins
	for i := range int64(blocks) {
		off := last / 2
		if blocks > 1 {
			off = last * i / int64(blocks-1)
		}
		if err := r.ReadAt(ctx, buf, off); err != nil {
			return nil, err
		}
		h.Write(buf)
	}
	return h.Sum(nil), nil
}
