package blob

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// ErrAddress reports an address that names no store.
var ErrAddress = errors.New("invalid address of a store")

var (
	schemesMu sync.RWMutex
	schemes   = map[string]func(ctx context.Context, address string) (Store, error){} // guarded by schemesMu
)

// logKey is the key of the logger of a context.
type logKey struct{}

// WithLogger returns a context with which OpenAddress opens stores that log to log, such as
// requests that are repeated. Nil: they log no requests, which is the default.
func WithLogger(ctx context.Context, log *slog.Logger) context.Context {
	return context.WithValue(ctx, logKey{}, log)
}

// Logger returns the logger of a context, or nil. It is for functions that Register gets.
func Logger(ctx context.Context) *slog.Logger {
	log, _ := ctx.Value(logKey{}).(*slog.Logger)
	return log
}

// Register makes open the function that opens addresses of a scheme, such as "s3". A
// package that implements a store calls it when it is initialised, so a program imports
// such a package to open its addresses. It panics if the scheme is registered already.
func Register(scheme string, open func(ctx context.Context, address string) (Store, error)) {
	schemesMu.Lock()
	defer schemesMu.Unlock()
	if schemes[scheme] != nil {
		panic(fmt.Sprintf("blob: the scheme %q is registered twice", scheme))
	}
	schemes[scheme] = open
}

// OpenAddress returns the store at an address: the path of a folder or of a single file, or a
// URL with a registered scheme, such as file:///path, s3://bucket/prefix or memory:RUN. The errors wrap
// ErrAddress if the address is invalid. They do not repeat its query or its user, which may
// hold secrets.
//
// A URL names a single object if its last element has an extension, such as .pt, and
// there is an object of that name. It takes a request to find out. Otherwise, or if it ends
// with a slash, it names a folder, and OpenAddress makes no request.
func OpenAddress(ctx context.Context, address string) (Store, error) {
	before, _, _ := strings.Cut(address, "?")
	if dir, name := SplitAddress(address); Scheme(address) != "file" && !strings.HasSuffix(before, "/") && path.Ext(name) != "" && CheckName(name) == nil {
		s, err := openScheme(ctx, dir)
		if err != nil {
			return nil, err
		}

		_, err = s.Stat(ctx, name)
		if err == nil {
			return NewSingle(s, name), nil
		}

		// If the user may not list objects, services refuse to say that one does not exist.
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
	}

	return openScheme(ctx, address)
}

// OpenFolder is OpenAddress for an address that does not name a single object. It makes no
// request, whatever the name of the folder.
func OpenFolder(ctx context.Context, address string) (Store, error) { return openScheme(ctx, address) }

// modelName matches the name of a model on huggingface.co, with or without its owner.
var modelName = regexp.MustCompile(`^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$`)

// webAdvice returns advice on how to download the folder or file at an address of the web. It is
// empty for other addresses.
func webAdvice(address string) string {
	scheme := Scheme(address)
	if scheme != "http" && scheme != "https" && scheme != "hf" {
		return ""
	}
	_, rest, _ := strings.Cut(Redact(address), "://")
	if model, ok := strings.CutPrefix(rest, "huggingface.co/"); ok || scheme == "hf" {
		if !ok {
			model = rest
		}
		parts := append(strings.Split(strings.Trim(model, "/"), "/"), "")
		name := path.Join(parts[0], parts[1])
		if slices.Contains([]string{"tree", "blob", "resolve"}, parts[1]) { // a model without an owner, such as gpt2
			name = parts[0]
		}
		if modelName.MatchString(name) {
			return fmt.Sprintf("'hf download %s --local-dir %s' makes it a folder here, which cairn opens", name, path.Base(name))
		}
	}
	return "cairn opens no web pages: download the file, and give its path"
}

// openScheme opens an address with the function of its scheme.
func openScheme(ctx context.Context, address string) (Store, error) {
	address = LongForm(address)
	scheme := Scheme(address)
	schemesMu.RLock()
	open := schemes[scheme]
	_, rest, isURL := strings.Cut(address, "://")
	var known []string
	for s := range schemes {
		known = append(known, s)
	}
	schemesMu.RUnlock()

	if scheme != "file" && !isURL {
		return nil, fmt.Errorf("%w: %s: a URL begins with %s://, and the path of such a folder with ./", ErrAddress, Redact(address), scheme)
	}

	if open == nil {
		if advice := webAdvice(address); advice != "" {
			return nil, fmt.Errorf("%w: %s: %s", ErrAddress, Redact(address), advice)
		}
		slices.Sort(known)
		return nil, fmt.Errorf("%w: %s: this program knows the schemes %s", ErrAddress, Redact(address), strings.Join(known, ", "))
	}

	if isURL {
		address = scheme + "://" + rest
	}
	return open(ctx, address)
}

// LongForm returns the address memory:RUN in its long form, memory://RUN, and any other address
// unchanged.
func LongForm(address string) string {
	if rest, ok := strings.CutPrefix(address, "memory:"); ok && !strings.HasPrefix(rest, "/") {
		return "memory://" + rest
	}
	return address
}

// Scheme returns the scheme of an address, in lower case. A path has the scheme "file". An
// address such as s3:/bucket, which is a URL that has lost a slash, has the scheme "s3" and
// cannot be opened: it would otherwise be a folder on the local disk.
func Scheme(address string) string {
	address = LongForm(address)
	scheme, _, ok := strings.Cut(address, "://")
	if !ok {
		scheme, _, ok = strings.Cut(address, ":/")
		ok = ok && len(scheme) > 1 && !strings.ContainsAny(scheme, "/\\. ") // C:/ is a disk
	}
	if !ok {
		return "file"
	}
	return strings.ToLower(scheme)
}

// Redact returns an address without its user and its query, which may hold secrets.
func Redact(address string) string {
	address = LongForm(address)
	if !strings.Contains(address, "://") && Scheme(address) == "file" {
		return address // a path
	}
	if !strings.Contains(address, "://") {
		return Scheme(address) + ":/…"
	}

	u, err := url.Parse(address)
	if err != nil {
		return Scheme(address) + "://…"
	}

	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

// SplitAddress splits an address into its parent and its last element, without escapes. The
// parent keeps the query. If the address has no parent, such as s3://bucket, the name is
// empty.
func SplitAddress(address string) (dir, name string) {
	address = LongForm(address)
	if !strings.Contains(address, "://") {
		i := strings.LastIndexByte(strings.TrimRight(address, "/"), '/') + 1
		return address[:i], strings.TrimRight(address[i:], "/")
	}

	scheme, rest, _ := strings.Cut(address, "://")
	before, query, found := strings.Cut(rest, "?")
	before = strings.TrimRight(before, "/")
	i := strings.LastIndexByte(before, '/')
	if i < 0 {
		return address, ""
	}

	name, err := url.PathUnescape(before[i+1:])
	if err != nil {
		return address, ""
	}

	dir = scheme + "://" + before[:i]
	if i == 0 {
		dir += "/" // file:///
	}
	if found {
		dir += "?" + query
	}
	return dir, name
}

// JoinAddress appends elements to an address, which is a path or a URL. A URL keeps its
// query.
func JoinAddress(address string, elem ...string) string {
	if len(elem) == 0 {
		return address
	}

	rest, address := strings.Join(elem, "/"), LongForm(address)
	if Scheme(address) == "file" && !strings.Contains(address, "://") {
		return strings.TrimRight(address, "/") + "/" + rest
	}

	before, query, found := strings.Cut(address, "?")
	out := strings.TrimRight(before, "/") + "/" + (&url.URL{Path: rest}).EscapedPath()
	if found {
		out += "?" + query
	}
	return out
}
