// Package conformance tests drivers against real object storage servers on this machine:
// versitygw for S3, fake-gcs-server for Google Cloud Storage and Azurite for Azure. It runs the
// contract of blob.Store, faults and crashes against them, and has no code but tests.
package conformance
