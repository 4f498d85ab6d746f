package conformance

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// runScript saves to a run in S3, and to one in a folder that is uploaded to S3, and uses the
// methods of cairn.Run. Its arguments are the address of an empty run, with the endpoint in
// its query, and an empty folder.
const runScript = `
import sys, cairn
from cairn._saver import Saver
from saving import join, save
address, folder = sys.argv[1:]

def saves(run, steps):
    s = Saver(ceiling=1 << 20)
    join(s)
    for step, loss in steps:
        m, uploads = run.member(step), []
        more = {"remote": m.remote, "uploads": uploads} if m.remote else {}
        save(s, m.path, {"w": ("uint8", [3], bytes([step] * 3))}, step=step, metrics={"loss": loss}, run=m.message(), **more)
        for u in uploads:
            u.result(120)
    s.close()  # the run is in order then

def found(run):
    return [(c.step, c.copies) for c in run.checkpoints()]

def check(got, want):
    assert got == want, "%r; want %r" % (got, want)

run = cairn.Run(address, keep="last 2, best 1 by loss")
check((run.checkpoints(), run.latest()), ([], None))
saves(run, [(1, 4.0), (2, 1.0), (3, "NaN"), (4, 3.0), (5, 2.0)])
check(found(run), [(2, "local"), (4, "local"), (5, "local")])
check((run.latest(), run.checkpoints()[-1].path), (run.path_of(5),) * 2)
check(run.tag(2, "release"), ("release",))
check([(c.tags, c.metrics) for c in run.checkpoints()][0], (("release",), {"loss": 1.0}))
with cairn.open(run.checkpoints()[0].path, framework="memory") as c:
    check(c["w"][:].tolist(), [2, 2, 2])
report = cairn.Run(address, keep="last 1, tagged").prune(dry_run=True)
check([p.outcome for p in report.local], ["kept", "would remove", "kept"])
run.remove(4)
check(found(run), [(2, "local"), (5, "local")])
try:
    run.remove(5)
    assert False
except cairn.CairnError as e:
    assert "newest" in str(e), e
run.remove(5, force=True)
check(found(run), [(2, "local")])

both = cairn.Run(folder, keep="last 1", remote=address, keep_remote="last 3")
saves(both, [(6, 1.0), (7, 1.0)])
check(found(both), [(2, "remote"), (6, "both"), (7, "both")])
cairn.Run(address).remove(7, force=True)
check([c.not_uploaded for c in both.checkpoints()], [False, False, True])
check(both.sync().copied, ("step-000000007",))
check(found(both), [(2, "remote"), (6, "both"), (7, "both")])
`

// TestPythonRunInS3 has the Python package use runs in S3.
func TestPythonRunInS3(t *testing.T) {
	t.Parallel() // it waits for much of its time
	python, err := exec.LookPath(cmp.Or(os.Getenv("PYTHON"), "python3"))
	if err != nil {
		t.Skip(err)
	}
	env := []string{"CAIRN_BINARY=" + buildCairn(t), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=" +
		strings.Join([]string{filepath.Join("..", "..", "python"), filepath.Join("..", "..", "python", "tests")}, string(os.PathListSeparator))}
	address := fmt.Sprintf("s3://bucket/%d/run?endpoint=%s", folders.Add(1), endpoint)
	if out, err := command(t, env, python, "-c", runScript, address, t.TempDir()); err != nil {
		t.Errorf("runs of Python = %v:\n%s", err, out)
	}
}
