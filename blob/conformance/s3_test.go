package conformance

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/blobtest"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/blob/s3"
)

// serveEnv names the folder of a server that this process is to be.
const serveEnv = "CAIRN_CONFORMANCE_SERVE"

var endpoint string // of the S3 server, which is a process of its own

func TestMain(m *testing.M) {
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
	if err := ServeS3(ctx, dir, func(endpoint, bucket string) { fmt.Println("ready", endpoint) }); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func run(m *testing.M) int {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": AccessKey, "AWS_SECRET_ACCESS_KEY": SecretKey, "AWS_EC2_METADATA_DISABLED": "true",
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
		server.Process.Kill() // it has nothing to lose
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

// place returns the address of a folder that nothing else uses.
func place() string {
	return fmt.Sprintf("s3://bucket/%d/x?endpoint=%s", folders.Add(1), endpoint)
}

func openS3(t *testing.T, o *remote.Options) *remote.Store {
	t.Helper()
	s, err := s3.Open(t.Context(), place(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// versitygwGaps are faults of the server, which keeps objects as files.
var versitygwGaps = []blobtest.Gap{
	{Claim: "ReplacementIsAtomicForReaders", Why: "versitygw lists its temporary files while it replaces an object; TestS3Replacement tests the rest"},
	{Claim: "CreateAndRemoveSideBySide", Why: "versitygw refuses an object while it removes the folder of another one"},
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

// Of many writers with the same condition exactly one wins.
func TestS3OneWriterWins(t *testing.T) {
	s := openS3(t, nil)
	for round := range 100 {
		opts := &blob.CreateOptions{IfAbsent: true}
		want := fs.ErrExist
		if round > 0 {
			info, err := s.Stat(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			opts, want = &blob.CreateOptions{IfVersion: info.Version}, blob.ErrChanged
		}
		var won atomic.Int64
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				_, err := blob.WriteAll(t.Context(), s, "x", fmt.Appendf(nil, "round %d, writer %d", round, i), opts)
				if err == nil {
					won.Add(1)
				} else if !errors.Is(err, want) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d of 4 writers have won", round, won.Load())
		}
	}
}

// An object of several parts, and the parts that a dead writer leaves.
func TestS3Parts(t *testing.T) {
	s := openS3(t, nil)
	const piece = 8 << 20
	data := make([]byte, 3*piece+12345)
	rand.NewChaCha8([32]byte{1}).Read(data)
	before := s.Traffic()
	if _, err := blob.WriteAll(t.Context(), s, "large", data, &blob.CreateOptions{Piece: piece, IfAbsent: true}); err != nil {
		t.Fatal(err)
	}
	if n := s.Traffic().Sub(before).Requests; n != 6 {
		t.Errorf("an object of four parts took %d requests; want 6", n)
	}
	got, err := blob.ReadAll(t.Context(), s, "large", 1<<30)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("the object is another one, or %v", err)
	}
	dead, err := s.Create(t.Context(), "dead", &blob.CreateOptions{Size: 2 * piece, Piece: piece})
	if err == nil {
		err = dead.WriteAt(t.Context(), data[:piece], 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	temps, err := s.Temps(t.Context(), "")
	if err != nil || len(temps) != 1 || !strings.Contains(temps[0].Name, "dead") {
		t.Errorf("Temps = %v, %v; want the upload of dead", temps, err)
	}
	if n, err := s.SweepTemp(t.Context(), "", time.Hour); n != 0 || err != nil {
		t.Errorf("SweepTemp of what is an hour old = %d, %v; want 0", n, err)
	}
	if n, err := s.SweepTemp(t.Context(), "", 0); n != 1 || err != nil {
		t.Errorf("SweepTemp = %d, %v; want 1", n, err)
	}
	if temps, err := s.Temps(t.Context(), ""); len(temps) != 0 || err != nil {
		t.Errorf("Temps = %v, %v; want none", temps, err)
	}
}
