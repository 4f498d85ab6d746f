//go:build unix

package deaths

import (
	"encoding/json"
	"testing"

	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
)

// process is a rank that carries orders out.
type process struct{ *tcptest.Process }

// start starts a process, which ends with the test.
func start(t *testing.T) *process {
	t.Helper()
	return &process{tcptest.Start(t, rankVariable+"=1")}
}

func (p *process) order(t *testing.T, o order) {
	t.Helper()
	if err := json.NewEncoder(p.In).Encode(o); err != nil {
		t.Fatal(err)
	}
}

// outcome returns what the process says of its order. False: it has ended.
func (p *process) outcome(t *testing.T) (outcome, bool) {
	t.Helper()
	var out outcome
	line, ok := p.Line()
	if !ok {
		return out, false
	}
	if err := json.Unmarshal([]byte(line), &out); err != nil {
		t.Fatalf("outcome %q: %v", line, err)
	}
	return out, true
}
