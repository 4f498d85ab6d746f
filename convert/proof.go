package convert

import (
	"context"
	"encoding/hex"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/zeebo/blake3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/view"
	"github.com/cairn-ckpt/cairn/tensor"
)

// proof is the evidence of a conversion through a recipe that its result is right: the digest
// of each item, computed while it is written, and how many elements had the same sums in the
// source and in the result. A nil proof collects no digests.
type proof struct {
	compared atomic.Int64

	mu      sync.Mutex
	digests map[meta.IndexKey][]byte // guarded by mu
}

// viewOf returns the view that c is, or nil.
func viewOf(c storage.Checkpoint) *view.Checkpoint {
	v, _ := c.(*view.Checkpoint)
	return v
}

// newProof returns the proof of a conversion of src, or nil if src is not a view.
func newProof(src storage.Checkpoint) *proof {
	if viewOf(src) == nil {
		return nil
	}
	return &proof{digests: map[meta.IndexKey][]byte{}}
}

// note keeps the digest of an item.
func (p *proof) note(i meta.Index, sum []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.digests[i.Key()] = sum
}

// fill sets the digests of results.
func (p *proof) fill(r *storage.WriteResults) {
	if p == nil {
		return
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	for i := range r.Items {
		if it := &r.Items[i]; it.Digest == nil {
			it.Digest = p.digests[it.Index.Key()]
		}
	}
}

// sums compares the sums of the elements that were read for a part of the result with the
// sums of the part itself. read reads the part p. size is the size of its elements.
func (p *proof) sums(ctx context.Context, part []byte, size int, read func(ctx context.Context) error) error {
	if p == nil {
		return read(ctx)
	}

	var from, to view.Sums
	if err := read(view.WithSums(ctx, &from)); err != nil {
		return err
	}

	to.AddBytes(part, size)
	if err := from.Compare(&to); err != nil {
		return err
	}

	if !from.Inexact.Load() {
		p.compared.Add(int64(to.Elements.Load()))
	}
	return nil
}

// provenStream computes the digest of an item while a writer reads it.
type provenStream struct {
	plan.Stream
	proof *proof
	index meta.Index
	size  int64
	at    int64 // the bytes that the digest has
	hash  *blake3.Hasher
}

// stream returns a stream that also computes the digest.
func (p *proof) stream(s plan.Stream, it *plan.WriteItem) plan.Stream {
	if p == nil {
		return s
	}
	return &provenStream{Stream: s, proof: p, index: it.Index(), size: it.NumBytes(), hash: blake3.New()}
}

// ReadAt implements plan.Stream. Writers read from front to back; one that begins again
// gets a new digest.
func (s *provenStream) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := s.Stream.ReadAt(ctx, p, off); err != nil {
		return err
	}

	if off == 0 {
		s.hash.Reset()
		s.at = 0
	}
	if off == s.at {
		s.hash.Write(p)
		s.at += int64(len(p))
	}

	return nil
}

// Close implements plan.Stream.
func (s *provenStream) Close() error {
	if s.at == s.size {
		s.proof.note(s.index, s.hash.Sum(nil))
	}
	return s.Stream.Close()
}

// ItemDigest is the digest of a tensor that was written, or of a chunk of one.
type ItemDigest struct {
	Name string `json:"name"`
	// Offset is the position of a chunk. Nil: the whole tensor.
	Offset []int64 `json:"offset,omitempty"`
	// DType and Shape describe the whole tensor.
	DType string  `json:"dtype"`
	Shape []int64 `json:"shape"`
	// BLAKE3 is the digest of the contiguous little-endian bytes, the last dimension
	// fastest, in hexadecimal.
	BLAKE3 string `json:"blake3"`
}

// report returns the digests of all items. Tensors under several names are written once,
// so all of these names have the same digest.
func (p *proof) report(j *Job, results []*storage.WriteResults) []ItemDigest {
	if p == nil {
		return nil
	}

	lead := map[int32][]byte{}
	for pass := range 2 {
		for _, r := range results {
			for i := range r.Items {
				it := &r.Items[i]
				e := j.find(it.Index.FQN)
				if e == nil || e.alias == 0 {
					continue
				}

				if pass == 0 && it.Digest != nil {
					lead[e.alias] = it.Digest
				} else if it.Digest == nil {
					it.Digest = lead[e.alias]
				}
			}
		}
	}

	var out []ItemDigest
	for _, r := range results {
		for i := range r.Items {
			it := &r.Items[i]
			e := j.find(it.Index.FQN)
			if e == nil || e.src.Tensor == nil || it.Digest == nil {
				continue
			}

			d := ItemDigest{Name: it.Index.FQN, DType: e.info.Properties.DType.String(), Shape: e.info.Shape, BLAKE3: hex.EncodeToString(it.Digest)}
			if len(e.boxes) > max(1, e.copies) {
				d.Offset = it.Index.Offset
			}
			out = append(out, d)
		}
	}

	slices.SortFunc(out, func(a, b ItemDigest) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return slices.Compare(a.Offset, b.Offset)
	})
	return slices.CompactFunc(out, func(a, b ItemDigest) bool {
		return a.Name == b.Name && slices.Equal(a.Offset, b.Offset)
	})
}

// checkPiece is the size of the parts that CheckDigests reads.
const checkPiece = 8 << 20

// CheckDigests reads the tensors of c and compares them with their digests. It returns every
// tensor that differs, is missing, or has no digest. progress, if not nil, receives the bytes
// that were read since its last call, from several goroutines at once.
func CheckDigests(ctx context.Context, c storage.Checkpoint, digests []ItemDigest, progress func(bytes int64)) ([]storage.VerifyProblem, error) {
	md, err := c.Metadata(ctx)
	if err != nil {
		return nil, err
	}

	boxes, texts, out := digestBoxes(md, digests)
	s := &source{src: c, md: md, opts: storage.ReadOptions{BufferBytes: 2 * checkPiece, Parallel: 2}, slots: semaphore.NewWeighted(1 << 20)}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(2, runtime.GOMAXPROCS(0)))

	for i, d := range digests {
		if texts[i] != "" {
			continue
		}
		g.Go(func() (err error) {
			e, _ := md.Find(d.Name)
			texts[i], err = s.checkDigest(ctx, e, boxes[i], d.BLAKE3, progress)
			return plan.Named(d.Name, err)
		})
	}

	if err := g.Wait(); err != nil {
		return nil, err
	}

	var wrong []storage.VerifyProblem
	for i, text := range texts {
		if text != "" {
			wrong = append(wrong, storage.VerifyProblem{FQN: digests[i].Name, Text: text})
		}
	}

	return append(wrong, out...), nil
}

// digestBoxes returns the boxes of digests, and the fault of each digest, or "". The problems
// are the tensors of which not all elements have a digest.
func digestBoxes(md *meta.Metadata, digests []ItemDigest) (boxes []tensor.Box, texts []string, problems []storage.VerifyProblem) {
	boxes, texts = make([]tensor.Box, len(digests)), make([]string, len(digests))
	elements := map[string]int64{} // with a digest, by name
	wrong := map[string]bool{}     // names with a problem already
	seen := map[meta.IndexKey]bool{}
	for i, d := range digests {
		e, ok := md.Find(d.Name)
		if !ok || e.Tensor == nil {
			texts[i] = "the manifest has this tensor, the checkpoint does not"
			continue
		}

		if boxes[i], texts[i] = d.box(e.Tensor); texts[i] != "" {
			wrong[d.Name] = true
			continue
		}

		key := meta.Index{FQN: d.Name, Offset: boxes[i].Offsets}.Key()
		if seen[key] {
			texts[i] = fmt.Sprintf("the manifest has it twice at %v", boxes[i].Offsets)
			continue
		}

		seen[key] = true
		elements[d.Name] += boxes[i].Volume()
	}

	for i := range md.Entries {
		e := &md.Entries[i]
		if e.Tensor == nil || wrong[e.FQN] {
			continue
		}

		all := tensor.Whole(e.Tensor.Shape).Volume()
		if n, ok := elements[e.FQN]; !ok {
			problems = append(problems, storage.VerifyProblem{FQN: e.FQN, Text: "the checkpoint has this tensor, the manifest does not"})
		} else if n != all {
			problems = append(problems, storage.VerifyProblem{FQN: e.FQN, Text: fmt.Sprintf("the manifest has digests of %d of its %d elements", n, all)})
		}
	}

	return boxes, texts, problems
}

// box returns the box of t that the digest covers, or the fault of the digest.
func (d *ItemDigest) box(t *meta.Tensor) (tensor.Box, string) {
	if dtype := t.DType.String(); d.DType != dtype || !slices.Equal(d.Shape, t.Shape) {
		return tensor.Box{}, fmt.Sprintf("it is %s %v, in the manifest %s %v", dtype, t.Shape, d.DType, d.Shape)
	}
	if d.Offset == nil {
		return tensor.Whole(t.Shape), ""
	}

	at, ok := t.FindChunk(d.Offset, 0)
	if !ok {
		return tensor.Box{}, fmt.Sprintf("the manifest has a chunk at %v, the checkpoint does not", d.Offset)
	}
	return t.Chunks[at], ""
}

// checkDigest compares a box of a tensor with its digest. It returns the difference, or "".
func (s *source) checkDigest(ctx context.Context, e *meta.Entry, box tensor.Box, want string, progress func(int64)) (string, error) {
	entry := newEntry(e, &plan.Info{FQN: e.FQN, Properties: e.Tensor.Properties, Shape: e.Tensor.Shape})
	c := newContent(s, &entry, box)
	h := blake3.New()
	buf := make([]byte, min(checkPiece, c.size))
	for off := int64(0); off < c.size; {
		p := buf[:min(int64(len(buf)), c.size-off)]
		if err := c.fill(ctx, p, off); err != nil {
			return "", err
		}
		h.Write(p)
		off += int64(len(p))
		if progress != nil {
			progress(int64(len(p)))
		}
	}

	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Sprintf("its BLAKE3 digest is %s, the manifest has %s", got, want), nil
	}
	return "", nil
}
