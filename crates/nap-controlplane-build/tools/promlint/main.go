// Command promlint reads metrics on standard input and prints what Prometheus' own linter says of
// each; it fails if there is anything to say.
package main

import (
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func main() {
	problems, err := promlint.New(os.Stdin).Lint()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	for _, problem := range problems {
		fmt.Println(problem.Metric, problem.Text)
	}
	if len(problems) > 0 {
		os.Exit(1)
	}
}
