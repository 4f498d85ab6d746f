package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// rateStreams are the numbers of streams that are measured.
var rateStreams = []int{1, 8, 32}

var rates = check{
	name:    "rates",
	follows: "How long saves and loads take is not known.",
	run: func(ctx context.Context, e *exam) (string, error) {
		data := blob.AlignedBytes(int(partBytes))
		copy(data, pattern(partBytes))
		var texts []string
		for _, n := range rateStreams {
			r, err := e.rate(ctx, n, data)
			if err != nil {
				return "", err
			}
			e.rep.Rates = append(e.rep.Rates, r)
			texts = append(texts, fmt.Sprintf("%d: %.0f MB/s written, %.0f MB/s read", n, r.Write/1e6, r.Read/1e6))
		}
		return "streams " + strings.Join(texts, "; "), nil
	},
}

// rate measures a number of streams, each of which writes and then reads an object again
// and again.
func (e *exam) rate(ctx context.Context, streams int, data []byte) (Rate, error) {
	name := func(i int) string { return fmt.Sprint("rate-", i) }
	write, err := e.measure(ctx, streams, func(ctx context.Context, i int) error {
		_, err := blob.WriteAll(ctx, e.s, name(i), data, &blob.CreateOptions{Piece: partBytes})
		return err
	})
	if err != nil {
		return Rate{}, err
	}
	read, err := e.measure(ctx, streams, func(ctx context.Context, i int) error {
		r, err := blob.OpenKnown(ctx, e.s, blob.Info{Name: name(i), Size: partBytes})
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = blob.ReadLarge(ctx, r, blob.AlignedBytes(int(partBytes+2*blob.Align)), 0, partBytes)
		return err
	})
	return Rate{Streams: streams, Write: write, Read: read}, err
}

// measure calls fn in a number of goroutines until the time is over, and returns the
// bytes per second if each call moves partBytes.
func (e *exam) measure(ctx context.Context, streams int, fn func(ctx context.Context, i int) error) (float64, error) {
	begin := time.Now()
	var calls atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, streams)
	for i := range streams {
		wg.Go(func() {
			for errs[i] == nil {
				if errs[i] = fn(ctx, i); errs[i] == nil {
					calls.Add(1)
				}
				if time.Since(begin) >= e.opts.Time {
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(calls.Load()*partBytes) / time.Since(begin).Seconds(), errors.Join(errs...)
}
