// Command karpenter-bench solves a problem file with Karpenter's own scheduler, as the module has
// it, and writes the plan and the time it took. With --steps it consolidates the problem's nodes.
//
// It is the other side of nap's benchmarks: no API server, no batching, no launch. Every solve has
// fresh objects and a fresh scheduler; the clock covers copying the state, building the topology
// and the scheduler, solving, and ordering the types of each claim by price.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	provisioning "sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	"sigs.k8s.io/karpenter/pkg/operator/options"
)

type summary struct {
	Median float64 `json:"median"`
	P99    float64 `json:"p99"`
}

type report struct {
	Name             string   `json:"name"`
	Version          string   `json:"version"`
	ConstructSeconds summary  `json:"constructSeconds"`
	SolveSeconds     summary  `json:"solveSeconds"`
	RankSeconds      summary  `json:"rankSeconds"`
	FinalPlanSeconds summary  `json:"finalPlanSeconds"`
	CPUSeconds       summary  `json:"cpuSeconds"`
	Nodes            int      `json:"nodes"`
	CostUsdPerHour   float64  `json:"costUsdPerHour"`
	Unplaced         int      `json:"unplaced"`
	PeakRSSMiB       *float64 `json:"peakRssMiB"`
}

type timing struct{ construct, solve, rank, cpu time.Duration }

func main() {
	path := flag.String("problem", "", "the problem file")
	out := flag.String("plan", "", "where the plan of the last run goes")
	repeat := flag.Int("repeat", 1, "how many times it is solved")
	workers := flag.Int("workers", 1, "the scheduler's own parallelism")
	procs := flag.Int("procs", 1, "GOMAXPROCS")
	limit := flag.Duration("timeout", time.Minute, "when a solve is cut; Karpenter's own limit is a minute, 0 is none")
	reserved := flag.Bool("reserved-capacity", true, "the ReservedCapacity feature gate; on by default in Karpenter, off in the Azure chart")
	steps := flag.String("steps", "", "consolidate the problem's nodes instead, and write the steps to this file")
	budget := flag.Int("budget", 100, "with --steps: the disruption budget of every NodePool, in percent of its nodes")
	seconds := flag.Int("limit", 600, "with --steps: seconds after which no further pass begins")
	flag.Parse()
	runtime.GOMAXPROCS(*procs)
	log.SetLogger(logr.Discard())
	if *steps != "" {
		if err := consolidate(*path, *steps, *budget, time.Duration(*seconds)*time.Second, *workers, *reserved); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(*path, *out, *repeat, *workers, *limit, *reserved); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(path, out string, repeat, workers int, limit time.Duration, reserved bool) error {
	if path == "" || repeat < 1 {
		return errors.New("give a --problem, and a --repeat of at least 1")
	}
	read, err := readProblem(path)
	if err != nil {
		return err
	}
	registerLabels(read)
	ctx := newContext("provisioner", workers, reserved)
	var timings []timing
	var last plan
	for range repeat {
		made, err := newWorld(ctx, read)
		if err != nil {
			return err
		}
		runtime.GC()
		results, took, err := solve(ctx, made, workers, limit)
		if err != nil {
			return err
		}
		timings = append(timings, took)
		last = made.newPlan(read, results)
	}
	if out != "" {
		if err := last.write(out); err != nil {
			return err
		}
	}
	seconds := func(of func(timing) time.Duration) summary {
		var list []float64
		for _, one := range timings {
			list = append(list, of(one).Seconds())
		}
		return summarise(list)
	}
	return json.NewEncoder(os.Stdout).Encode(report{
		Name:             read.Name,
		Version:          version(),
		ConstructSeconds: seconds(func(t timing) time.Duration { return t.construct }),
		SolveSeconds:     seconds(func(t timing) time.Duration { return t.solve }),
		RankSeconds:      seconds(func(t timing) time.Duration { return t.rank }),
		FinalPlanSeconds: seconds(func(t timing) time.Duration { return t.construct + t.solve + t.rank }),
		CPUSeconds:       seconds(func(t timing) time.Duration { return t.cpu }),
		Nodes:            len(last.Nodes),
		CostUsdPerHour:   last.cost(),
		Unplaced:         last.unplaced(),
		PeakRSSMiB:       peakMiB(),
	})
}

// newContext carries the operator's options to a controller's code.
func newContext(controller string, workers int, reserved bool) context.Context {
	ctx := log.IntoContext(context.Background(), logr.Discard())
	return options.ToContext(injection.WithControllerName(ctx, controller), &options.Options{
		CPURequests:       int64(workers) * 1000,
		PreferencePolicy:  options.PreferencePolicyRespect,
		MinValuesPolicy:   options.MinValuesPolicyStrict,
		IgnoreDRARequests: true,
		FeatureGates:      options.FeatureGates{ReservedCapacity: reserved},
	})
}

// solve is what is timed: from objects in memory to claims whose types are in the order of their
// price.
func solve(ctx context.Context, made *world, workers int, limit time.Duration) (provisioning.Results, timing, error) {
	var took timing
	cpu := cpuTime()
	began := time.Now()
	settings := []provisioning.Options{
		provisioning.DisableReservedCapacityFallback,
		provisioning.NumConcurrentReconciles(workers),
		provisioning.MinValuesPolicy(options.MinValuesPolicyStrict),
	}
	nodes := made.cluster.DeepCopyNodes()
	topology, err := provisioning.NewTopology(ctx, made.client, made.cluster, nodes.Active(), made.nodePools, made.instanceTypes, made.pending, settings...)
	if err != nil {
		return provisioning.Results{}, took, err
	}
	recorder := events.NewRecorder(&record.FakeRecorder{})
	scheduler := provisioning.NewScheduler(ctx, made.client, made.nodePools, made.cluster, nodes.Active(), topology, made.instanceTypes,
		made.daemons, recorder, clock.RealClock{}, nil, nil, settings...)
	took.construct = time.Since(began)

	began = time.Now()
	limited := ctx
	if limit > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	results, err := scheduler.Solve(limited, made.pending)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return results, took, err
	}
	took.solve = time.Since(began)

	began = time.Now()
	results = results.TruncateInstanceTypes(ctx, provisioning.MaxInstanceTypes)
	took.rank = time.Since(began)
	took.cpu = cpuTime() - cpu
	return results, took, nil
}

func summarise(list []float64) summary {
	slices.Sort(list)
	count := len(list)
	rank := (count*99 + 99) / 100
	return summary{Median: (list[(count-1)/2] + list[count/2]) / 2, P99: list[rank-1]}
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// peakMiB is the most memory that was resident, where the system says it.
func peakMiB() *float64 {
	content, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmHWM:" {
			if kib, err := strconv.ParseFloat(fields[1], 64); err == nil {
				mib := kib / 1024
				return &mib
			}
		}
	}
	return nil
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, module := range info.Deps {
		if module.Path == "sigs.k8s.io/karpenter" {
			return module.Version
		}
	}
	return "unknown"
}
