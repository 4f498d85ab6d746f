package cli

import (
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progress shows how many bytes were moved. A nil progress shows nothing.
type progress struct {
	p    *mpb.Progress
	bar  *mpb.Bar
	once sync.Once
}

// progress begins a bar for total bytes; zero means that the number is unknown.
// It returns nil if the output shows no bars. The caller must call done.
func (o *output) progress(label string, total int64) *progress {
	if !o.bars {
		return nil
	}
	start := time.Now()
	p := mpb.New(mpb.WithOutput(o.err), mpb.WithWidth(40))
	bar := p.New(total, mpb.BarStyle().Lbound("[").Filler("=").Tip(">").Padding(" ").Rbound("]"),
		mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(label, decor.WCSyncSpaceR)),
		mpb.AppendDecorators(decor.Any(func(s decor.Statistics) string {
			return describeProgress(s.Current, s.Total, time.Since(start))
		})),
	)
	return &progress{p: p, bar: bar}
}

// describeProgress says how many bytes of how many were moved, how fast, and
// how long the rest will take. A total of zero is unknown.
func describeProgress(current, total int64, elapsed time.Duration) string {
	rate := float64(current) / max(elapsed.Seconds(), 1e-3)
	text := formatBytes(current)
	if total > 0 {
		text += " of " + formatBytes(total)
	}
	if current == 0 {
		return text
	}
	text += "  " + formatRate(rate)
	if left := total - current; left > 0 {
		text += "  " + time.Duration(float64(left)/rate*float64(time.Second)).Round(time.Second).String() + " left"
	}
	return text
}

// add counts bytes. It may be called from several goroutines at once.
func (p *progress) add(bytes int64) {
	if p != nil {
		p.bar.IncrInt64(bytes)
	}
}

// done removes the bar.
func (p *progress) done() {
	if p == nil {
		return
	}
	p.once.Do(func() {
		p.bar.Abort(true)
		p.p.Wait()
	})
}
