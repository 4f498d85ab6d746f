package saver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/background/upload"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
)

// niceness is how far training comes before saves: with equal demand it gets three quarters of a
// processor. exportNiceness is the same for exports, which nobody waits for.
const (
	niceness       = 5
	exportNiceness = 15
)

// Options say how saver processes are started.
type Options struct {
	// Command is the program with its arguments, such as "cairn", "saver". Nil: this
	// program. It must call Main before it does anything else.
	Command []string
	// Title is an argument that this program gets as a saver, so that ps shows the run that
	// it saves. It is not used with a Command. Empty: the rank and the folder of the run.
	Title string
	// Listen is the address at which the saver of rank 0 listens for the savers of the other
	// ranks: "host:port", with port 0 for any port. Empty: loopback, which suffices if
	// all ranks are on one host.
	Listen string
	// Log is a file to which savers append their log, as text: the events of saves, also
	// after the trainer has ended, and the reason of a crash. Savers of several ranks
	// may share it. Empty: the log is discarded.
	Log string
}

// processName is the name of saver processes in ps and top.
const processName = "cairn-saver"

// variable tells a program that it is to be a saver.
const variable = "CAIRN_SAVER"

// Main turns this process into a saver and ends it, if a trainer has started it as one.
// Otherwise it returns at once. A program that uses savers without the program cairn calls
// it first in its function main.
func Main() {
	if os.Getenv(variable) == "" {
		return
	}
	if err := Run(nil); err != nil {
		fmt.Fprintln(os.Stderr, "cairn saver:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Descriptors that a saver inherits, unless the variable has others.
const (
	socketFD = 3
	arenaFD  = 4
)

// descriptors returns the descriptors that the value of the variable names: "1" stands for
// the usual ones, and "7,9" for a socket at 7 and an arena at 9.
func descriptors(text string) (sock, arena uintptr, err error) {
	if text == "1" {
		return socketFD, arenaFD, nil
	}
	first, second, _ := strings.Cut(text, ",")
	a, err1 := strconv.ParseUint(first, 10, 31)
	b, err2 := strconv.ParseUint(second, 10, 31)
	if err1 != nil || err2 != nil || a == b {
		return 0, 0, fmt.Errorf("%w: %s=%q; want 1, or two descriptors with a comma between them", ErrMessage, variable, text)
	}
	return uintptr(a), uintptr(b), nil
}

// Run is the work of a process that a trainer has started as its saver.
func Run(opts *ServeOptions) error {
	text := os.Getenv(variable)
	if text == "" {
		return fmt.Errorf("%w: a saver is started by a trainer, which shares a socket and memory with it", ErrMessage)
	}
	sockFD, arenaFD, err := descriptors(text)
	if err != nil {
		return err
	}
	os.Unsetenv(variable)
	// Signals that announce the end of a job, or end it, are for its trainers. Their savers
	// end when they are done.
	signal.Ignore(ignored...)
	setPriority(niceness)
	nameProcess()
	sock, arena := os.NewFile(sockFD, "socket"), os.NewFile(arenaFD, "arena")
	defer arena.Close()
	conn, err := net.FileConn(sock)
	sock.Close()
	if err != nil {
		return err
	}
	defer conn.Close()
	var o ServeOptions
	if opts != nil {
		o = *opts
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return Serve(context.Background(), conn, arena, &o)
}

// Process is a saver process, as its trainer sees it.
type Process struct {
	conn   net.Conn
	out    *outbox
	kill   func()        // ends the process
	ended  chan struct{} // closed once the conversation is over
	err    error         // why; before ended is closed
	exited chan struct{} // closed once the process has gone
	// refused is why the process ends the conversation, if it has sent that. Only receive
	// uses it.
	refused error

	mu      sync.Mutex
	saves   map[uint64]*sentSave
	uploads map[uint64]*sentSave // of saves that are over
	answers chan *frame
	closed  bool
}

// sentSave is a save that a saver process carries out.
type sentSave struct {
	snapshot *stage.Snapshot
	recorder *protocol.Recorder
	observer *protocol.Observer
	over     func(*protocol.SaveReport, error)
	uploaded func(*upload.Report, error) // nil: there is no upload
}

// fail ends a save and its upload.
func (s *sentSave) fail(err error) {
	s.over(nil, err)
	if s.uploaded != nil {
		s.uploaded(nil, err)
	}
}

// exitTime is how long a trainer waits for the end of a saver that it has let go.
const exitTime = 5 * time.Second

// startTime bounds how long a saver process may take to start.
const startTime = time.Minute

// Start starts a saver process that shares the memory of arena.
func Start(ctx context.Context, o Options, arena *stage.Arena) (*Process, error) {
	if arena.File() == nil {
		return nil, fmt.Errorf("%w: it is not shared", stage.ErrArena)
	}

	if os.Getenv(variable) != "" {
		// Without this, a program that forgets Main would start itself without end.
		return nil, fmt.Errorf("%w: this process was started as a saver, but its program does not call saver.Main first", ErrMessage)
	}

	command := o.Command
	if len(command) == 0 {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		command = []string{self, processName + ": " + o.Title} // Main looks at no arguments
	}

	conn, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}

	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), variable+"=1")
	cmd.ExtraFiles = []*os.File{theirs, arena.File()}
	detach(cmd)
	err = startLogged(cmd, o.Log)
	theirs.Close()
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("start the saver process: %w", err)
	}

	p := newProcess(conn, cmd.Wait)
	p.kill = func() { _ = cmd.Process.Kill() } // it may have gone
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := p.greet(ctx); err != nil {
		p.Disconnect()
		p.kill()
		return nil, fmt.Errorf("start the saver process %q: %w; a program that is its own saver calls saver.Main before anything else", command, err)
	}
	return p, nil
}

// startLogged starts a command and appends its standard error to a file. If the name is
// empty, standard error is discarded: a saver that kept the standard error of the trainer
// would hold up any process that waits for its end.
func startLogged(cmd *exec.Cmd, name string) error {
	if name != "" {
		f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
		if err != nil {
			return err
		}
		defer f.Close()
		cmd.Stderr = f
	}
	return cmd.Start()
}

// newProcess returns the process at the other end of conn. wait waits until it has ended.
func newProcess(conn net.Conn, wait func() error) *Process {
	p := &Process{
		conn: conn, out: newOutbox(conn, ErrSaver), kill: func() {}, ended: make(chan struct{}), exited: make(chan struct{}),
		saves: map[uint64]*sentSave{}, uploads: map[uint64]*sentSave{}, answers: make(chan *frame, 1),
	}
	go p.receive(wait)
	return p
}

// greet begins the conversation.
func (p *Process) greet(ctx context.Context) error {
	p.post(typeHello, helloBody{Version: messageVersion})
	_, err := answer[readyBody](ctx, p, typeReady)
	return err
}

// Err returns why the process cannot be used any more, an error that wraps ErrSaver, or
// nil if it can.
func (p *Process) Err() error {
	if p.Alive() {
		return nil
	}
	return p.err
}

// Alive reports whether the process can be used.
func (p *Process) Alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Disconnect ends the conversation. The process completes the staged saves and ends.
func (p *Process) Disconnect() { p.conn.Close() }

// Ended is closed once the conversation is over.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Stop ends the conversation and waits until the process has gone. The process has a few
// seconds to complete the staged saves. Then it is killed, so it cannot publish anything
// after Stop has returned nil. If ctx ends first, Stop returns its cause.
func (p *Process) Stop(ctx context.Context) error {
	p.conn.Close()
	for _, gone := range []<-chan struct{}{p.ended, p.exited} {
		select {
		case <-gone:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		p.kill()
	}
	return nil
}

// post sends a message when those before it have been sent.
func (p *Process) post(kind string, body any) {
	b, err := appendFrame(nil, kind, body)
	if err != nil {
		p.conn.Close()
		return
	}
	p.out.sendFrame(b)
}

// Flush waits until the system has everything that was sent: the saver can read it even
// if this process ends. If the process ends, or ctx, Flush returns earlier.
func (p *Process) Flush(ctx context.Context) { p.out.flush(ctx) }

// receive handles the messages of the process until it ends.
func (p *Process) receive(wait func() error) {
	r := bufio.NewReaderSize(p.conn, 64<<10)
	var err error
	for err == nil {
		var f *frame
		if f, err = readFrame(r); err == nil {
			err = p.handle(f)
		}
	}

	p.conn.Close()
	p.out.close(0)
	if p.refused != nil {
		err = p.refused
	}

	var exit error
	go func() {
		exit = wait()
		close(p.exited)
	}()

	cause := fmt.Errorf("%w: %w", ErrSaver, err)
	select {
	case <-p.exited:
		if exit != nil {
			cause = fmt.Errorf("%w: %w (%v)", ErrSaver, err, exit)
		}
	case <-time.After(exitTime): // it completes a save
	}

	p.mu.Lock()
	p.err = cause
	p.closed = true
	saves, uploads := p.saves, p.uploads
	p.saves, p.uploads = nil, nil
	p.mu.Unlock()
	close(p.ended)

	for _, generation := range slices.Sorted(maps.Keys(uploads)) {
		uploads[generation].uploaded(nil, cause)
	}
	for _, generation := range slices.Sorted(maps.Keys(saves)) {
		saves[generation].fail(cause)
	}
}

// handle handles one message.
func (p *Process) handle(f *frame) error {
	switch f.Type {
	case typeReady, typeListening, typeJoined:
		return p.answered(f)
	case typeFetch:
		return on(f, false, p.fetch)
	case typeReleased:
		return on(f, false, func(b *releasedBody) error {
			if s := p.save(b.Generation); s != nil {
				for _, i := range b.Items {
					s.snapshot.Release(i)
				}
			}
			return nil
		})
	case typeProgress:
		return on(f, false, p.progress)
	case typeWarning:
		return on(f, false, func(b *warningBody) error {
			if o := p.observer(b.subject); o != nil && o.Warned != nil {
				o.Warned(errors.New(b.Text))
			}
			return nil
		})
	case typeSaved:
		return on(f, false, func(b *savedBody) error {
			if s := p.take(b.Generation, b.Report != nil); s != nil && b.Report != nil {
				s.over(b.Report, nil)
			}
			return nil
		})
	case typeUploaded:
		return on(f, false, p.handleUploaded)
	case typeFailed:
		return p.failed(f)
	case typeRefused:
		return on(f, false, func(b *refusedBody) error {
			p.refused = b.Error.err()
			return nil
		})
	}
	return fmt.Errorf("%w: type %q", ErrMessage, f.Type)
}

// answered passes the answer to a request on.
func (p *Process) answered(f *frame) error {
	select {
	case p.answers <- f:
		return nil
	default:
		return fmt.Errorf("%w: %q answers nothing", ErrMessage, f.Type)
	}
}

// failed ends a save or a request.
func (p *Process) failed(f *frame) error {
	b, err := decode[failedBody](f, false)
	if err != nil {
		return err
	}
	if b.subject == (subject{}) {
		return p.answered(f)
	}
	if s := p.take(b.Generation, false); s != nil {
		s.recorder.ImportFailure(b.Phase)
		s.fail(b.Error.err())
	}
	return nil
}

func (p *Process) save(generation uint64) *sentSave {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.saves[generation]
}

// take returns a save that is over. If it has succeeded, its upload may follow.
func (p *Process) take(generation uint64, succeeded bool) *sentSave {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.saves[generation]
	delete(p.saves, generation)
	if s != nil && s.uploaded != nil && succeeded {
		p.uploads[generation] = s
	}
	return s
}

// handleUploaded ends an upload.
func (p *Process) handleUploaded(b *uploadedBody) error {
	p.mu.Lock()
	s := p.uploads[b.Generation]
	delete(p.uploads, b.Generation)
	p.mu.Unlock()
	switch {
	case s == nil:
		return nil
	case b.Error != nil:
		s.uploaded(nil, b.Error.err())
	case b.Report != nil:
		s.uploaded(b.Report, nil)
	default:
		s.uploaded(nil, fmt.Errorf("%w: %q without a report and without an error", ErrMessage, typeUploaded))
	}
	return nil
}

// observer returns the observer of a save.
func (p *Process) observer(of subject) *protocol.Observer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.saves[of.Generation]; s != nil {
		return s.observer
	}
	return nil
}

func (p *Process) progress(b *progressBody) error {
	o := p.observer(b.subject)
	if o == nil {
		return nil
	}
	if b.Planned > 0 && o.Planned != nil {
		o.Planned(b.Planned)
	}
	if b.Moved > 0 && o.Moved != nil {
		o.Moved(b.Moved)
	}
	for _, ph := range b.Phases {
		if o.Phase != nil {
			o.Phase(ph)
		}
	}
	return nil
}

// fetch copies a part of an item that is not staged to where the saver wants it.
func (p *Process) fetch(b *fetchBody) error {
	err := fmt.Errorf("%w: generation %d is not being saved", stage.ErrGeneration, b.Generation)
	if s := p.save(b.Generation); s != nil {
		err = s.snapshot.Fetch(b.Item, b.Offset, b.Length, b.At)
	}
	out := fetchedBody{Fetch: b.Fetch}
	if err != nil {
		v := newErrorBody(err)
		out.Error = &v
	}
	p.post(typeFetched, out)
	return nil
}

// answer waits for the answer to a request.
func answer[T any](ctx context.Context, p *Process, kind string) (*T, error) {
	select {
	case f := <-p.answers:
		if f.Type == typeFailed {
			b, err := decode[failedBody](f, false)
			if err != nil {
				return nil, err
			}
			return nil, b.Error.err()
		}
		if f.Type != kind {
			return nil, fmt.Errorf("%w: %q instead of %q", ErrMessage, f.Type, kind)
		}
		return decode[T](f, false)
	case <-p.ended:
		return nil, p.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Meeting is the place where savers meet: the address of the saver of rank 0, and the
// secret and the job that they share.
type Meeting struct {
	Address string `json:"address"`
	Secret  []byte `json:"secret"`
	Job     string `json:"job"`
}

// Listen lets the saver of rank 0 wait for the savers of the other ranks. It returns the
// address for them.
func (p *Process) Listen(ctx context.Context, m Meeting, size int) (string, error) {
	p.post(typeListen, listenBody{Address: m.Address, Size: size, Secret: m.Secret, Job: m.Job})
	b, err := answer[listeningBody](ctx, p, typeListening)
	if err != nil {
		return "", err
	}
	return b.Address, nil
}

// Join lets the saver join the savers of the other ranks, and returns when all have met. On
// rank 0 of several it comes after Listen.
func (p *Process) Join(ctx context.Context, m Meeting, rank, size int) error {
	if rank > 0 || size == 1 {
		p.post(typeJoin, joinBody{Rank: rank, Size: size, Address: m.Address, Secret: m.Secret, Job: m.Job})
	}
	_, err := answer[joinedBody](ctx, p, typeJoined)
	return err
}

// Save begins a save of a snapshot. The units are sent as they are staged. over is
// called once with the outcome. After that, uploaded receives the outcome of the upload, if the
// request has one. recorder receives the phases and warnings, and its Observer the
// progress. Save itself fails only if the process has ended, or if the description of the
// state is too large for a message.
func (p *Process) Save(r *SaveMessage, s *stage.Snapshot, recorder *protocol.Recorder, over func(*protocol.SaveReport, error), uploaded func(*upload.Report, error)) error {
	r.body.Fits = s.Fits()
	message, err := appendFrame(nil, typeSave, &r.body)
	if err != nil {
		return err
	}
	if r.body.Remote == "" {
		uploaded = nil
	}
	save := &sentSave{s, recorder, recorder.ForProcess(), over, uploaded}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return p.err
	}
	p.saves[s.Generation()] = save
	p.mu.Unlock()
	s.Staged = func(u stage.Unit) {
		p.post(typeStaged, stagedBody{Generation: s.Generation(), Units: []unitBody{unitBody(u)}})
	}
	s.Complete = func() {
		p.post(typeStaged, stagedBody{
			Generation: s.Generation(), All: true, StageNS: int64(time.Since(r.Began)), StageBytes: s.Bytes(),
		})
	}
	s.Failed = func(err error) { p.post(typeAbandon, abandonBody{s.Generation(), newErrorBody(err)}) }
	p.out.sendFrame(message)
	return nil
}

// Drop withdraws a save, unless it has begun.
func (p *Process) Drop(generation uint64) { p.post(typeDrop, dropBody{generation}) }

// SaveMessage is the message that describes a save.
type SaveMessage struct {
	// Began is when the trainer began to stage.
	Began time.Time
	body  saveBody
}

// NewSaveMessage describes a save of a snapshot.
func NewSaveMessage(v SaveRequest, s *stage.Snapshot) *SaveMessage {
	local, _ := s.LocalPlan()
	b := saveBody{Generation: s.Generation(), SaveRequest: v, Absent: local.Absent, Items: make([]itemBody, len(local.Items))}
	for i := range local.Items {
		it := &local.Items[i]
		b.Items[i] = describe(it)
		if it.Kind == plan.KindBytes {
			b.Items[i].Data = s.Value(i)
			continue
		}
		b.Items[i].Strides = s.Strides(i)
		b.Items[i].Alias = int(it.Alias)
	}
	return &SaveMessage{Began: time.Now(), body: b}
}
