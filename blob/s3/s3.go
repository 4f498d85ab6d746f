// Package s3 keeps objects in Amazon S3 and services with the same interface. Importing
// it makes blob.OpenAddress open addresses such as
//
//	s3://bucket/prefix
//	s3://bucket/prefix?endpoint=https://minio.example:9000&region=eu-central-1
//
// Region, credentials and endpoint are found as the AWS SDK finds them: in the
// environment, in the files of the AWS command line, and by the roles of the machine.
// The query may set endpoint, region, path_style (true or false; by default true if there
// is an endpoint) and unconditional (see remote.Options). It never contains credentials.
//
// The package is a driver for blob/remote, which does everything but the requests.
package s3

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/blob/remote"
)

func init() {
	blob.Register("s3", func(ctx context.Context, address string) (blob.Store, error) {
		s, err := Open(ctx, address, &remote.Options{Logger: blob.Logger(ctx)})
		if err != nil {
			return nil, err
		}
		return cache.FromEnv(ctx, s)
	})
}

// Open returns the store at an address. It makes no request to the bucket. Nil options
// mean the defaults.
func Open(ctx context.Context, address string, o *remote.Options) (*remote.Store, error) {
	a, err := parse(address)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", blob.ErrAddress, blob.Redact(address), err)
	}

	client, err := a.client(ctx)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", blob.Redact(address), err)
	}

	var opts remote.Options
	if o != nil {
		opts = *o
	}

	opts.Unconditional = opts.Unconditional || a.unconditional
	v := &service{client: client, address: a, bucket: a.bucket, amazon: a.endpoint == "", copyBytes: cmp.Or(opts.CopyBytes, copyBytes)}
	return remote.New(v, a.prefix, blob.Redact(address), &opts)
}

// address is an address of this package.
type address struct {
	bucket, prefix           string
	endpoint, region         string
	pathStyle, unconditional bool
}

func parse(text string) (*address, error) {
	u, err := remote.ParseAddress(text, "s3", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", "endpoint", "region", "path_style", "unconditional")
	if err != nil {
		return nil, err
	}

	a := &address{bucket: u.Bucket, prefix: u.Prefix, region: u.Options["region"]}
	a.endpoint = cmp.Or(u.Options["endpoint"], os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"))
	if a.endpoint != "" {
		if err := remote.CheckEndpoint(a.endpoint); err != nil {
			return nil, err
		}
	}

	if a.unconditional, err = u.Bool("unconditional", false); err != nil {
		return nil, err
	}

	a.pathStyle, err = u.Bool("path_style", a.endpoint != "")
	return a, err
}

var (
	clientsMu sync.Mutex
	clients   = map[string]*client{} // guarded by clientsMu
)

// client is a client and the probed properties of its service.
type client struct {
	*s3.Client
	probe remote.Probe
}

// client returns a client. Stores of one service share one, and its connections.
func (a *address) client(ctx context.Context) (*client, error) {
	key := strings.Join([]string{a.endpoint, a.region, strconv.FormatBool(a.pathStyle), os.Getenv("AWS_PROFILE"), os.Getenv("AWS_ACCESS_KEY_ID"),
		os.Getenv("AWS_SECRET_ACCESS_KEY"), os.Getenv("AWS_SESSION_TOKEN"), os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")}, "\x00")
	clientsMu.Lock()
	defer clientsMu.Unlock()

	if c := clients[key]; c != nil {
		return c, nil
	}

	c, err := a.newClient(ctx, config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }),
		config.WithHTTPClient(awshttp.NewBuildableClient().WithTransportOptions(remote.Tune)),
		config.WithLogger(logging.Nop{}), // broken connections are in the log of remote.Options
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired))
	if err != nil {
		return nil, err
	}

	clients[key] = &client{Client: c}
	return clients[key], nil
}

// newClient returns a client of the service at the address.
func (a *address) newClient(ctx context.Context, opts ...func(*config.LoadOptions) error) (*s3.Client, error) {
	cfg, err := config.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return nil, err
	}

	if b, ok := cfg.HTTPClient.(*awshttp.BuildableClient); ok { // with the certificates of the user
		if client, ok := b.Freeze().(*http.Client); ok {
			client.CheckRedirect, client.Transport = noRedirect, remote.Transport{RoundTripper: client.Transport}
			cfg.HTTPClient = client
		}
	}

	if a.region != "" {
		cfg.Region = a.region
	}

	if cfg.Region == "" {
		if a.endpoint == "" {
			return nil, fmt.Errorf("the region of the bucket is not known: set AWS_REGION, or add ?region=… to the address")
		}
		cfg.Region = "us-east-1" // the usual value for other services
	}

	return s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.UsePathStyle = a.pathStyle
		if a.endpoint != "" {
			o.BaseEndpoint = aws.String(a.endpoint)
		}
	}), nil
}

// noRedirect makes a redirect an error: the signature of a request is for one host.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
