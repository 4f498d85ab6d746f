package cli

import (
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/web"
)

// webResult is the output of 'cairn web --json'.
type webResult struct {
	URL  string `json:"url"`
	Path string `json:"path"`
	Port int    `json:"port"`
}

type webFlags struct {
	siteFlags
	port      int
	listen    string
	tokenFile string
	open      bool
	noOpen    bool
	follow    bool
}

func newWebCmd() *cobra.Command {
	var f webFlags
	cmd := newCommand("web", wantArgs(1, -1), completePaths(maxPaths), func(cmd *cobra.Command, args []string) error {
		return f.run(cmd, args)
	})
	fl := cmd.Flags()
	fl.IntVar(&f.port, "port", 0, "listen on this `port` of 127.0.0.1 (default: a free one)")
	fl.StringVar(&f.listen, "listen", "", "listen on this `ADDRESS:PORT`; one that other machines reach needs --token-file")
	fl.StringVar(&f.tokenFile, "token-file", "", "take the token from this `FILE`, which only its owner may read")
	fl.BoolVar(&f.open, "open", false, "open the page in a browser (default: if stdout is a terminal on a desktop)")
	fl.BoolVar(&f.noOpen, "no-open", false, "do not open a browser")
	fl.BoolVar(&f.follow, "follow-links", false, "show checkpoints and files to which links lead, outside of the folders that are given")
	f.siteFlags.add(cmd)
	_ = cmd.MarkFlagFilename("token-file") // fails for unknown flags only
	return baseFlag(cmd)
}

func (f *webFlags) check(cmd *cobra.Command) error {
	switch {
	case f.open && f.noOpen:
		return usagef(cmd, "--open and --no-open do not go together")
	case f.listen != "" && cmd.Flags().Changed("port"):
		return usagef(cmd, "--port and --listen do not go together: the port is part of --listen")
	case f.port < 0 || f.port > 65535:
		return usagef(cmd, "--port %d: want a number up to 65535", f.port)
	}
	return nil
}

func (f *webFlags) run(cmd *cobra.Command, args []string) error {
	if err := f.check(cmd); err != nil {
		return err
	}

	host, address, err := f.address(cmd)
	if err != nil {
		return err
	}
	token, err := f.token(cmd, host)
	if err != nil {
		return err
	}

	f.confined, f.wait = !f.follow, true
	site, err := f.siteFlags.open(cmd, args)
	if err != nil {
		return err
	}
	defer site.Close()

	ctx := cmd.Context()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return withHint(err, "choose another port with --port, or leave it out for a free one")
	}
	defer l.Close()

	bound := l.Addr().(*net.TCPAddr)
	if f.tokenFile == "" && !bound.IP.IsLoopback() { // this machine has another localhost
		return f.needsToken(cmd)
	}
	port := bound.Port
	server, err := web.NewServer(site, web.ServerOptions{Token: token, Hosts: hostsOf(host, port), AnyIP: !isLoopback(host), Port: port})
	if err != nil {
		return err
	}

	// The heap grows to the size of the index. Meanwhile there is little garbage to collect, and
	// the browser needs the processors.
	usual := debug.SetGCPercent(400)
	prepared := site.Prepare()
	go func() {
		<-prepared
		debug.SetGCPercent(usual)
	}()

	shown := host
	if shown == "" || net.ParseIP(host) != nil && net.ParseIP(host).IsUnspecified() {
		shown = hostName()
	}
	v := webResult{Path: blob.Redact(args[0]), Port: port}
	v.URL = (&url.URL{Scheme: "http", Host: net.JoinHostPort(shown, strconv.Itoa(port)), Path: "/", RawQuery: url.Values{"token": {token}}.Encode()}).String()

	o := outputOf(cmd)
	if err := o.result(v, func() { o.printf("%s\n", v.URL) }); err != nil {
		return err
	}
	if !o.json {
		o.warn("Ctrl-C ends the server")
	}

	if f.open || !f.noOpen && hasDesktop(o) {
		remove, err := openBrowser(v.URL)
		if err != nil {
			o.warn("cannot open a browser: %s", clean(err.Error()))
		}
		defer remove()
	}

	return server.Serve(ctx, l)
}

// address returns the host and the address to listen on.
func (f *webFlags) address(cmd *cobra.Command) (host, address string, err error) {
	if f.listen == "" {
		return "127.0.0.1", net.JoinHostPort("127.0.0.1", strconv.Itoa(f.port)), nil
	}
	host, port, err := net.SplitHostPort(f.listen)
	if err != nil {
		return "", "", usagef(cmd, "--listen %q: want ADDRESS:PORT, such as 0.0.0.0:8080", f.listen)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", "", usagef(cmd, "--listen %q: the port is not a number up to 65535", f.listen)
	}
	return host, f.listen, nil
}

// isLoopback reports whether only programs of this machine reach a host.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// hostsOf returns the names that requests may address the server by.
func hostsOf(host string, port int) []string {
	names := []string{"127.0.0.1", "localhost", "::1"}
	if !isLoopback(host) {
		names = append(names, strings.ToLower(hostName()))
	}
	if host != "" && !slices.Contains(names, strings.ToLower(host)) {
		names = append(names, strings.ToLower(host))
	}
	var out []string
	for _, n := range names {
		out = append(out, net.JoinHostPort(n, strconv.Itoa(port)))
		if port == httpPort { // browsers leave it out
			out = append(out, strings.TrimSuffix(net.JoinHostPort(n, ""), ":"))
		}
	}
	return out
}

// httpPort is the port of addresses that have none.
const httpPort = 80

func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return name
}

// The bounds of the length of a token that a user chooses.
const minToken, maxToken = 16, 4096

// needsToken returns the error of a server that other machines reach without a token file.
func (f *webFlags) needsToken(cmd *cobra.Command) error {
	return withHint(usagef(cmd, "--listen %s is reached by other machines, and needs --token-file: the page shows your data, and plain HTTP does not hide what it sends", f.listen),
		"better: run 'cairn web' without --listen there, and 'ssh -L PORT:127.0.0.1:PORT HOST' here, with the port that it prints")
}

// token returns the token that requests need.
func (f *webFlags) token(cmd *cobra.Command, host string) (string, error) {
	if f.tokenFile == "" {
		if isLoopback(host) {
			return web.NewToken(), nil
		}
		return "", f.needsToken(cmd)
	}

	file, err := os.Open(f.tokenFile)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "", withHint(err, "make one: (umask 077; head -c 24 /dev/urandom | base64 > "+quoteArg(f.tokenFile)+")")
		}
		return "", err
	}
	defer file.Close()

	info, err := file.Stat() // of the open file, even if the name leads elsewhere meanwhile
	if err != nil {
		return "", err
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return "", withHint(fmt.Errorf("%s: others may read the token: its mode is %04o", f.tokenFile, info.Mode().Perm()), "chmod 600 "+quoteArg(f.tokenFile))
	}

	b, err := io.ReadAll(io.LimitReader(file, maxToken+1))
	if err != nil {
		return "", err
	}
	if len(b) > maxToken {
		return "", fmt.Errorf("%s: a token has at most %d characters", f.tokenFile, maxToken)
	}

	token := strings.TrimSpace(string(b))
	if odd := strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }); odd || len(token) < minToken {
		return "", fmt.Errorf("%s: a token is one line of at least %d characters of ASCII, without spaces", f.tokenFile, minToken)
	}
	return token, nil
}

// hasDesktop reports whether a browser that the command opens is likely to be in front of the
// person who has typed it.
func hasDesktop(o *output) bool {
	if o.json || !isTerminal(o.out) || os.Getenv("SSH_CONNECTION") != "" {
		return false
	}
	switch runtime.GOOS {
	case "darwin", "windows":
		return true
	}
	return os.Getenv("DISPLAY") != "" || os.Getenv("WAYLAND_DISPLAY") != ""
}

// openBrowser opens an address. It passes the browser a file that leads there, because every
// user of a machine sees the arguments of a program. remove removes the file.
func openBrowser(address string) (remove func(), err error) {
	dir, err := os.MkdirTemp("", "cairn-web-") // only its owner may read it
	if err != nil {
		return func() {}, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	page := filepath.Join(dir, "open.html")
	text := `<!doctype html><meta http-equiv="refresh" content="0; url=` + html.EscapeString(address) + `"><title>cairn</title>`
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		return remove, err
	}
	var c *exec.Cmd
	switch runtime.GOOS {
	case "darwin":
		c = exec.Command("open", page)
	case "windows":
		c = exec.Command("rundll32", "url.dll,FileProtocolHandler", page)
	default:
		c = exec.Command("xdg-open", page)
	}
	if err := c.Start(); err != nil {
		return remove, err
	}
	go func() { _ = c.Wait() }() // the browser may live longer than this program
	return remove, nil
}
