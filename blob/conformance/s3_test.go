package conformance

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/blobtest"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/blob/s3"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// serveEnv names the folder of a server that this process is to be.
const serveEnv = "CAIRN_CONFORMANCE_SERVE"

var endpoint string // of the S3 server, which is a process of its own

func TestMain(m *testing.M) {
	saver.Main() // this program is also the saver of its tests
	if dir := os.Getenv(serveEnv); dir != "" {
		os.Exit(serve(dir))
	}
	os.Exit(run(m))
}

// serve is the S3 server. It ends with its standard input.
func serve(dir string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	go func() {
		bufio.NewReader(os.Stdin).ReadByte()
		stop()
	}()
	if err := serveS3(ctx, dir, func(endpoint, bucket string) { fmt.Println("ready", endpoint) }); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func run(m *testing.M) int {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": secretKey, "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	} {
		os.Setenv(name, value)
	}
	dir, err := os.MkdirTemp("", "conformance-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	scratch = filepath.Join(dir, "scratch")
	dir = filepath.Join(dir, "served")
	if err := errors.Join(os.Mkdir(scratch, 0o700), os.Mkdir(dir, 0o700)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	server := exec.Command(os.Args[0])
	server.Env = append(os.Environ(), serveEnv+"="+dir)
	server.Stderr = os.Stderr
	in, err1 := server.StdinPipe()
	out, err2 := server.StdoutPipe()
	if err1 != nil || err2 != nil || server.Start() != nil {
		fmt.Fprintln(os.Stderr, "the S3 server did not start")
		return 1
	}
	defer func() {
		in.Close()
		server.Process.Kill() // it has no data to keep
		server.Wait()
	}()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if e, ok := strings.CutPrefix(lines.Text(), "ready "); ok {
			endpoint = e
			break
		}
	}
	if endpoint == "" {
		fmt.Fprintln(os.Stderr, "the S3 server has ended")
		return 1
	}
	go func() {
		for lines.Scan() {
		}
	}()
	return m.Run()
}

var folders atomic.Int64

// scratch is a folder that is removed after all tests.
var scratch string

// place returns the address of a folder for one test.
func place() string {
	return fmt.Sprintf("s3://bucket/%d/x?endpoint=%s", folders.Add(1), endpoint)
}

func openS3(t *testing.T, o *remote.Options) *remote.Store {
	t.Helper()
	s := must.Get(s3.Open(t.Context(), place(), o))(t)
	return s
}

// versitygwGaps are faults of the server, which keeps objects as files.
var versitygwGaps = []blobtest.Gap{
	{Claim: "ReplacementIsAtomicForReaders", Why: "versitygw lists its temporary files while it replaces an object; TestS3Replacement tests the rest"},
	{Claim: "CreateAndRemoveSideBySide", Why: "versitygw refuses an object while it removes the folder of another one"},
	{Claim: "OneOfRemovalAndReplacementWins", Why: "versitygw refuses an object while it removes another one; testRemoveVersion tests the condition"},
}

func TestS3(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store { return openS3(t, nil) }, versitygwGaps...)
}

// A reader sees the object before or after a replacement, or an error; never a mixture.
// The object is small enough for one request: versitygw reads the ETag of an object before
// it opens the file, so a second request with the ETag of the first may get other bytes.
func TestS3Replacement(t *testing.T) {
	const size = 60 << 10
	s := openS3(t, nil)
	write := func(i int) {
		if _, err := blob.WriteAll(t.Context(), s, "x", bytes.Repeat([]byte{byte(i)}, size), nil); err != nil {
			t.Error(err)
		}
	}
	write(0)
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for ctx.Err() == nil {
				p, err := blob.ReadAll(t.Context(), s, "x", 1<<20)
				if errors.Is(err, blob.ErrChanged) {
					continue
				}
				if err != nil || len(p) != size || bytes.Count(p, p[:1]) != len(p) {
					t.Errorf("%d bytes that differ, or %v", len(p), err)
					return
				}
			}
		})
	}
	for i := range 20 {
		write(i)
	}
	cancel()
	readers.Wait()
}

func TestServiceS3(t *testing.T) {
	const piece = 5 << 20
	open := func(t *testing.T) (*remote.Store, string) { return openS3(t, nil), "bucket" }
	testService(t, open, piece, func(parts int) int { return parts + 2 }) // and to begin and to end
	t.Run("OneWriterOfPartsWins", func(t *testing.T) {
		testOneWriterWins(t, openS3(t, nil), 10, piece, blob.CreateOptions{Piece: piece})
	})
	t.Run("WrongSum", func(t *testing.T) { testWrongSum(t, openS3(t, nil)) })
	t.Run("RemoveVersion", func(t *testing.T) { testRemoveVersion(t, openS3(t, nil)) })
	t.Run("RemoveCheckpoint", func(t *testing.T) { testRemoveCheckpoint(t, openS3(t, nil)) })
	t.Run("CopyInParts", testCopyInParts)
}

// testCopyInParts tests copies of objects that are too large for one request.
func testCopyInParts(t *testing.T) {
	const part = 5 << 20
	from, to := openS3(t, nil), openS3(t, &remote.Options{CopyBytes: part})
	data := noise(2*part + 12345)
	var was blob.Info
	for size, want := range map[int]int64{part: 1, len(data): 5} {
		var err error
		if was, err = blob.WriteAll(t.Context(), from, "from", data[:size], nil); err != nil {
			t.Fatal(err)
		}
		before := to.Traffic()
		info, err := to.CopyFrom(t.Context(), from, was, "to")
		if err != nil || info.Size != int64(size) {
			t.Fatalf("CopyFrom = %+v, %v; want %d bytes", info, err, size)
		}
		if n := to.Traffic().Sub(before); n != (blob.Traffic{Requests: want}) {
			t.Errorf("a copy of %d bytes: %+v; want %d requests", size, n, want)
		}
		now, err := to.Stat(t.Context(), "to")
		if err != nil || now.Version != info.Version {
			t.Errorf("Stat = %+v, %v; want version %s", now, err, info.Version)
		}
		if got, err := blob.ReadAll(t.Context(), to, "to", 1<<30); err != nil || !bytes.Equal(got, data[:size]) {
			t.Errorf("the copy of %d bytes has other bytes, or %v", size, err)
		}
	}
	// If the source has changed, the copy fails and leaves no object.
	if _, err := blob.WriteAll(t.Context(), from, "from", make([]byte, len(data)), nil); err != nil {
		t.Fatal(err)
	}
	was.Size = int64(len(data))
	if _, err := to.CopyFrom(t.Context(), from, was, "another"); !errors.Is(err, blob.ErrChanged) {
		t.Errorf("CopyFrom of an object that has changed = %v; want ErrChanged", err)
	}
	if now := names(t, to); now != "to" {
		t.Errorf("there is %s; want to", now)
	}
	if temps, err := to.Temps(t.Context(), ""); len(temps) != 0 || err != nil {
		t.Errorf("Temps = %v, %v; want none", temps, err)
	}
}
