package conformance

import "github.com/fsouza/fake-gcs-server/fakestorage"

// ServeGCS runs a server of Google Cloud Storage in this process until stop is called. It
// listens on loopback and has an empty bucket. host is the value of STORAGE_EMULATOR_HOST
// for its clients. The objects are in memory, or in dir if it is not empty: that is
// faster for many objects, but "a" and "a/b" cannot both exist.
func ServeGCS(dir string) (host, bucket string, stop func(), err error) {
	server, err := fakestorage.NewServerWithOptions(fakestorage.Options{Scheme: "http", PublicHost: "127.0.0.1", StorageRoot: dir})
	if err != nil {
		return "", "", nil, err
	}
	bucket = "bucket"
	server.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: bucket})
	return server.URL(), bucket, server.Stop, nil
}
