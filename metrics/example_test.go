package metrics_test

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/metrics"
)

func Example() {
	ctx := context.Background()
	stager, err := cairn.NewStager(&cairn.StagerOptions{Ceiling: 1 << 20})
	if err != nil {
		panic(err)
	}
	defer stager.Close(ctx)
	m := metrics.New(stager)
	prometheus.MustRegister(m) // and serve promhttp.Handler()
	opts := &cairn.AsyncOptions{Stager: stager}
	opts.Observer = m.Observer(nil)
	if _, err := cairn.SaveAsync(ctx, new(mem.Store), cairn.State{"step": 7}, opts); err != nil {
		panic(err)
	}
	// Output:
}
