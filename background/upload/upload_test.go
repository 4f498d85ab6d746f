package upload

import (
	"context"
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
)

// asked is the last store that was opened by an address of the scheme "asked".
var asked *fault.Store

func init() {
	blob.Register("asked", func(_ context.Context, address string) (blob.Store, error) {
		asked = fault.New(&mem.Store{Name: address}, fault.Rule{Times: -1, Do: fault.Fail(errors.New("no answer"))})
		return asked, nil
	})
}

// A save does not wait for a remote store that does not answer, whatever the run is called.
func TestOpenMakesNoRequest(t *testing.T) {
	open := func(address string) (blob.Store, error) { return blob.OpenAddress(t.Context(), address) }
	for _, address := range []string{"asked://bucket/model-3.1/step-1", "asked://bucket/model-3.1/step-1.5?region=x.y", "asked://bucket/step-1.5", "asked://bucket"} {
		if _, _, err := Open(open, address); err != nil || len(asked.Ops()) > 0 {
			t.Errorf("Open(%q) = %v; requests %v", address, err, asked.Ops())
		}
	}
	at, run, err := Open(open, "asked://bucket/model-3.1/step-1?region=x")
	if err != nil || run.String() != "mem://asked://bucket/model-3.1/?region=x" || at.String() != run.String()+"/step-1" {
		t.Errorf("Open = %v in %v, %v", at, run, err)
	}
}
