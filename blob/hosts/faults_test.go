package hosts

import (
	"bytes"
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// wantUnreachable checks an error that names a host, and does not look like a missing object.
func wantUnreachable(t *testing.T, call string, err error, host string) {
	t.Helper()
	if !errors.Is(err, ErrUnreachable) || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), host+" at 127.0.0.1:") {
		t.Errorf("%s = %v; want ErrUnreachable alone, with the address of %s", call, err, host)
	}
}

// wantAllUnreachable checks every method with an object that only host c may have.
func wantAllUnreachable(t *testing.T, s *Store, host string) {
	t.Helper()
	ctx := t.Context()
	_, err := s.Stat(ctx, "missing")
	wantUnreachable(t, "Stat", err, host)
	_, err = s.Open(ctx, "missing")
	wantUnreachable(t, "Open", err, host)
	_, err = s.Folders(ctx, "")
	wantUnreachable(t, "Folders", err, host)
	wantUnreachable(t, "Remove", s.Remove(ctx, "missing"), host)
	wantUnreachable(t, "Fetch", s.Fetch(ctx, "missing", 1, 0), host)

	got, err := names(ctx, s, "")
	wantUnreachable(t, "List", err, host)
	if !slices.Contains(got, "of b") {
		t.Errorf("List = %v; want the objects of b before the error", got)
	}
	if got, err := readAll(ctx, s, "of b"); err != nil || string(got) != "b" {
		t.Errorf("ReadAll of an object of b = %q, %v; want b", got, err)
	}
}

func TestHostThatVanishes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b, c := startHost(t, testStall), startHost(t, testStall)
	local := folder(t)
	s := join(t, local, Config{Stall: testStall}, b.addr, c.addr)
	put(t, b, "of b", []byte("b"))
	put(t, c, "of c", noise(1000))
	r := must.Get(s.Open(ctx, "of c"))(t)
	defer r.Close()

	c.stop()
	wantAllUnreachable(t, s, "c")
	wantUnreachable(t, "ReadAt", r.ReadAt(ctx, make([]byte, 10), 0), "c")

	without := must.Get(New(local, Config{Host: "a", Secret: secret, Peers: []Peer{{Host: "b", Addr: b.addr}, {Host: "c", Addr: c.addr, Lost: true}}}))(t)
	defer without.Close()
	if got, err := names(ctx, without, ""); err != nil || !slices.Equal(got, []string{"of b"}) {
		t.Errorf("List without the lost host = %v, %v; want of b", got, err)
	}
	if _, err := without.Stat(ctx, "of c"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat without the lost host = %v; want fs.ErrNotExist", err)
	}
}

// A host that is frozen, or reached in one direction only, is an error after the stall time.
func TestCutLinks(t *testing.T) {
	t.Parallel()
	for claim, cut := range map[string][2]bool{"frozen": {true, true}, "no way there": {true, false}, "no way back": {false, true}} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			b, c := startHost(t, testStall), startHost(t, testStall)
			link := newProxy(t, c.addr)
			s := join(t, folder(t), Config{Piece: 256 << 10, Stall: testStall}, b.addr, link.addr())
			put(t, b, "of b", []byte("b"))
			data := noise(4 << 20)
			put(t, c, "of c", data)
			r := must.Get(s.Open(ctx, "of c"))(t)
			defer r.Close()
			p := make([]byte, len(data))
			if err := r.ReadAt(ctx, p, 0); err != nil || !bytes.Equal(p, data) {
				t.Fatalf("ReadAt over a link that works = %v; want the bytes", err)
			}

			link.set(cut[0], cut[1])
			begin := time.Now()
			wantUnreachable(t, "ReadAt", r.ReadAt(ctx, p, 0), "c")
			wantAllUnreachable(t, s, "c")
			if took := time.Since(begin); took > patience {
				t.Errorf("the calls took %v; want one to wait for the stall time, and the others not", took)
			}

			link.set(false, false)
			time.Sleep(2 * testStall) // requests fail at once for that time
			if err := r.ReadAt(ctx, p, 0); err != nil || !bytes.Equal(p, data) {
				t.Errorf("ReadAt after the link has come back = %v; want the bytes", err)
			}
		})
	}
}

// A host that freezes while it sends is noticed, and Fetch leaves nothing behind.
func TestFreezeWhileFetching(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := startHost(t, testStall)
	link := newProxy(t, c.addr)
	local := folder(t)
	s := join(t, local, Config{Piece: 64 << 10, Rate: 1 << 20, Stall: testStall}, link.addr())
	data := noise(4 << 20)
	put(t, c, "x", data)

	stopped := time.AfterFunc(50*time.Millisecond, func() { link.set(false, true) })
	defer stopped.Stop()
	wantUnreachable(t, "Fetch", s.Fetch(ctx, "x", int64(len(data)), sumOf(data)), "b")
	if entries := must.Get(os.ReadDir(local.Dir()))(t); len(entries) != 0 {
		t.Errorf("the local folder has %v; want nothing", entries)
	}
}

// A caller that gives up does not wait for the stall time.
func TestCallerGivesUp(t *testing.T) {
	t.Parallel()
	c := startHost(t, testStall)
	link := newProxy(t, c.addr)
	s := join(t, folder(t), Config{Stall: time.Minute}, link.addr())
	link.set(true, true)
	why := errors.New("why")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, why)
	defer cancel()
	_, err := s.Stat(ctx, "x")
	if !errors.Is(err, why) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat = %v; want the cause of the context", err)
	}
	link.end() // the connection that is being made waits for a minute
}

func TestWrongSecret(t *testing.T) {
	t.Parallel()
	b := startHost(t, testStall)
	put(t, b, "x", []byte("bytes"))
	s := join(t, folder(t), Config{Secret: []byte("another")}, b.addr)
	_, err := s.Stat(t.Context(), "x")
	if !errors.Is(err, ErrSecret) || !errors.Is(err, ErrUnreachable) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat with another secret = %v; want ErrSecret and ErrUnreachable", err)
	}
}

// A server without the secret cannot pass itself off as a host: it repeats the proof that it
// received, or sends another one.
func TestServerWithoutSecret(t *testing.T) {
	t.Parallel()
	for claim, reply := range map[string]func(proof []byte) []byte{
		"the same proof": bytes.Clone,
		"zeros":          func(p []byte) []byte { return make([]byte, len(p)) },
	} {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			var hello [len(magic) + nonceSize]byte
			var p [proofSize]byte
			if _, err := io.ReadFull(far, hello[:]); err != nil {
				return
			}
			far.Write(hello[len(magic):]) // the dialler's own nonce
			if _, err := io.ReadFull(far, p[:]); err != nil {
				return
			}
			far.Write(reply(p[:]))
		}()
		if err := introduce(near, secret); !errors.Is(err, ErrSecret) {
			t.Errorf("introduce to a server that sends %s = %v; want ErrSecret", claim, err)
		}
		near.Close()
	}
}

// Nothing on the wire tells the secret, and no proof is sent twice.
func TestHandshakeOnTheWire(t *testing.T) {
	t.Parallel()
	var proofs [][]byte
	for range 2 {
		near, far := net.Pipe()
		var wire bytes.Buffer
		accepted := make(chan error, 1)
		go func() { accepted <- welcome(far, secret) }()
		err := introduce(struct {
			io.Reader
			io.Writer
		}{io.TeeReader(near, &wire), io.MultiWriter(near, &wire)}, secret)
		if err := errors.Join(err, <-accepted); err != nil {
			t.Fatalf("handshake = %v; want nil", err)
		}
		near.Close()
		far.Close()
		if bytes.Contains(wire.Bytes(), secret) {
			t.Error("the secret is on the wire")
		}
		proofs = append(proofs, wire.Bytes()[len(magic)+2*nonceSize:])
	}
	if hmac.Equal(proofs[0], proofs[1]) {
		t.Error("two handshakes have the same proofs")
	}
}

// Connections that never finish the handshake are closed, and do not keep hosts out.
func TestStrangers(t *testing.T) {
	t.Parallel()
	addr, stop := startServer(t, &server{store: folder(t), secret: secret, stall: testStall, handshake: time.Minute})
	var idle []net.Conn
	for range 2 * maxStrangers {
		c := must.Get(net.Dial("tcp", addr))(t)
		defer c.Close()
		idle = append(idle, c)
	}
	s := join(t, folder(t), Config{Stall: 10 * time.Second}, addr)
	if _, err := s.Stat(t.Context(), "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat beside many strangers = %v; want fs.ErrNotExist", err)
	}
	must.Do(t, idle[0].SetReadDeadline(time.Now().Add(10*time.Second)))
	if _, err := idle[0].Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) || err == nil {
		t.Errorf("the first stranger reads %v; want its connection closed", err)
	}
	stop() // the strangers do not keep the server from ending
}

// A stranger that sends something else, or nothing, is disconnected.
func TestStrangerIsDisconnected(t *testing.T) {
	t.Parallel()
	b := startHost(t, testStall)
	for claim, text := range map[string]string{"HTTP": "GET /list HTTP/1.1\r\nHost: x\r\n\r\n" + strings.Repeat(" ", 64), "nothing": ""} {
		c := must.Get(net.Dial("tcp", b.addr))(t)
		defer c.Close()
		must.Get(c.Write([]byte(text)))(t)
		must.Do(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		got, err := io.ReadAll(c)
		if errors.Is(err, os.ErrDeadlineExceeded) || len(got) > 0 {
			t.Errorf("a stranger that sends %s reads %q, %v; want its connection closed", claim, got, err)
		}
	}
}

// member returns a connection to a server after the handshake.
func member(t *testing.T, addr string) net.Conn {
	t.Helper()
	c := must.Get(net.Dial("tcp", addr))(t)
	t.Cleanup(func() { c.Close() })
	must.Do(t, introduce(c, secret))
	must.Do(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	return c
}

// A peer that asks and takes nothing is disconnected, and so is one that asks nothing.
func TestServerDoesNotWaitForPeers(t *testing.T) {
	t.Parallel()
	b := startHost(t, testStall)
	put(t, b, "x", noise(32<<20))
	deaf, silent := member(t, b.addr), member(t, b.addr)
	fmt.Fprintf(deaf, "GET %s?name=x HTTP/1.1\r\nHost: b\r\n\r\n", objectPath)
	time.Sleep(3 * testStall)
	n, _ := io.Copy(io.Discard, deaf)
	if n >= 32<<20 {
		t.Errorf("a peer that took nothing for a while got %d bytes; want its connection closed", n)
	}
	if _, err := silent.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a peer that asked nothing reads %v; want its connection closed", err)
	}
}

// Questions that no store asks are refused, and change nothing.
func TestHostileQuestions(t *testing.T) {
	t.Parallel()
	b := startHost(t, testStall)
	put(t, b, "x", []byte("bytes"))
	for question, want := range map[string]int{
		"GET /list?prefix=../":                                      http.StatusBadRequest,
		"GET /stat?name=../../etc/passwd":                           http.StatusBadRequest,
		"GET /object?name=" + blob.Reserved + "x":                   http.StatusBadRequest,
		"DELETE /object?name=a%00b":                                 http.StatusBadRequest,
		"GET /object?name=none":                                     http.StatusNotFound,
		"PUT /object?name=x":                                        http.StatusMethodNotAllowed,
		"POST /list":                                                http.StatusMethodNotAllowed,
		"GET /etc/passwd":                                           http.StatusNotFound,
		"DELETE /object?name=x\r\nIf-Match: \"zz\"":                 http.StatusPreconditionFailed,
		"GET /object?name=x\r\nRange: bytes=9-10":                   http.StatusRequestedRangeNotSatisfiable,
		"GET /object?name=x\r\nRange: bytes=0-0,2-3":                http.StatusBadRequest,
		"GET /object?name=x\r\nContent-Length: 5":                   http.StatusBadRequest,
		"GET /list?prefix=" + strings.Repeat("a", 2*maxHeader+8192): http.StatusRequestHeaderFieldsTooLarge,
	} {
		line, header, _ := strings.Cut(question, "\r\n")
		c := member(t, b.addr)
		fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: b\r\n%s\r\n\r\n", line, header)
		var status int
		text := make([]byte, 64)
		n, err := io.ReadAtLeast(c, text, 12)
		if _, scanErr := fmt.Sscanf(string(text[:n]), "HTTP/1.1 %d", &status); err != nil || scanErr != nil || status != want {
			t.Errorf("%.60q: %q, %v; want status %d", question, text[:n], err, want)
		}
	}
	if got, err := readAll(t.Context(), b.Store, "x"); err != nil || string(got) != "bytes" {
		t.Errorf("the object is %q, %v; want it unchanged", got, err)
	}
}

// Answers that no server gives are errors of the host, soon and in little memory.
func TestHostileAnswers(t *testing.T) {
	t.Parallel()
	const ok = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
	lines := func(text string) func(io.Writer) {
		return func(w io.Writer) { io.WriteString(w, ok+text) }
	}
	for claim, answer := range map[string]func(io.Writer){
		"a bad name":            lines(`{"name":"../x","size":1}` + "\n" + `{"end":true,"objects":1}` + "\n"),
		"another prefix":        lines(`{"name":"y","size":1}` + "\n" + `{"end":true,"objects":1}` + "\n"),
		"a negative size":       lines(`{"name":"x","size":-1}` + "\n" + `{"end":true,"objects":1}` + "\n"),
		"the same name twice":   lines(`{"name":"x"}` + "\n" + `{"name":"x"}` + "\n" + `{"end":true,"objects":2}` + "\n"),
		"names without order":   lines(`{"name":"xb"}` + "\n" + `{"name":"xa"}` + "\n" + `{"end":true,"objects":2}` + "\n"),
		"a list without end":    lines(`{"name":"x","size":1}` + "\n"),
		"a list that lacks one": lines(`{"name":"x","size":1}` + "\n" + `{"end":true,"objects":2}` + "\n"),
		"no JSON":               lines("<html>\n"),
		"a long version":        lines(`{"name":"x","version":"` + strings.Repeat("v", maxVersion+1) + `"}` + "\n"),
		"a missing object without our header": func(w io.Writer) {
			io.WriteString(w, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
		},
		"a redirect": func(w io.Writer) {
			io.WriteString(w, "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
		},
		"no HTTP":   func(w io.Writer) { io.WriteString(w, strings.Repeat("x", 1<<20)) },
		"a failure": func(w io.Writer) { io.WriteString(w, "HTTP/1.1 500 No\r\n\r\nfile does not exist") },
		"an endless line": func(w io.Writer) {
			io.WriteString(w, ok)
			endless(w, []byte(strings.Repeat("x", 4096)))
		},
		"an endless header": func(w io.Writer) {
			io.WriteString(w, "HTTP/1.1 200 OK\r\nX: ")
			endless(w, []byte(strings.Repeat("x", 4096)))
		},
		"endless blank lines": func(w io.Writer) {
			io.WriteString(w, ok)
			endless(w, []byte(strings.Repeat("\n", 4096)))
		},
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			s := join(t, folder(t), Config{Stall: 5 * time.Second}, scripted(t, answer))
			_, err := names(t.Context(), s, "x")
			wantUnreachable(t, "List", err, "b")
			_, err = s.Stat(t.Context(), "z")
			wantUnreachable(t, "Stat", err, "b")
		})
	}
}

// endless writes p until the connection is closed.
func endless(w io.Writer, p []byte) {
	for {
		if _, err := w.Write(p); err != nil {
			return
		}
	}
}

// Bytes with another range, size or version than was asked for are not accepted.
func TestHostileRanges(t *testing.T) {
	t.Parallel()
	head := "HTTP/1.1 206 Partial Content\r\n"
	for claim, answer := range map[string]string{
		"another range":   head + "Content-Length: 4\r\nETag: \"v\"\r\nContent-Range: bytes 2-5/10\r\n\r\nabcd",
		"another size":    head + "Content-Length: 4\r\nETag: \"v\"\r\nContent-Range: bytes 1-4/11\r\n\r\nabcd",
		"more bytes":      head + "Content-Length: 5\r\nETag: \"v\"\r\nContent-Range: bytes 1-4/10\r\n\r\nabcde",
		"fewer bytes":     head + "Content-Length: 4\r\nETag: \"v\"\r\nContent-Range: bytes 1-4/10\r\n\r\nabc",
		"another version": head + "Content-Length: 4\r\nETag: \"w\"\r\nContent-Range: bytes 1-4/10\r\n\r\nabcd",
		"all bytes":       "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nETag: \"v\"\r\n\r\nabcdefghij",
	} {
		s := join(t, folder(t), Config{}, scripted(t, func(w io.Writer) { io.WriteString(w, answer) }))
		r := must.Get(s.OpenKnown(t.Context(), blob.Info{Name: "x", Size: 10, Version: "v@b"}))(t)
		wantUnreachable(t, claim, r.ReadAt(t.Context(), make([]byte, 4), 1), "b")
		r.Close()
	}
}

// Many calls at the same time, while a host comes and goes, return errors or the right bytes.
func TestCallsWhileLinkFlaps(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b, c := startHost(t, testStall), startHost(t, testStall)
	link := newProxy(t, c.addr)
	s := join(t, folder(t), Config{Piece: 16 << 10, Stall: 50 * time.Millisecond}, b.addr, link.addr())
	data := noise(200 << 10)
	put(t, c, "x", data)

	stop := make(chan struct{})
	var flapping, calls sync.WaitGroup
	flapping.Go(func() {
		for i := 0; ; i++ {
			link.set(i%3 == 1, i%3 == 2)
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	for range 8 {
		calls.Go(func() {
			for range 10 {
				got, err := readAll(ctx, s, "x")
				if err == nil && !bytes.Equal(got, data) || errors.Is(err, fs.ErrNotExist) {
					t.Errorf("ReadAll = %d bytes, %v; want the bytes, or an error that is not fs.ErrNotExist", len(got), err)
				}
				if got, err := names(ctx, s, ""); err == nil && len(got) != 1 {
					t.Errorf("List = %v; want x, or an error", got)
				}
			}
		})
	}
	calls.Wait()
	close(stop)
	flapping.Wait()
}
