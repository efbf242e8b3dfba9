// Etcd as its own project ships it: the same flags, so that a prebuilt one can stand in its place.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
