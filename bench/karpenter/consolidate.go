package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"time"

	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/events"
)

// step is one command: nodes that are removed together, and the places of their pods.
type step struct {
	Remove []string `json:"remove"`
	Plan   plan     `json:"plan"`
}

// stepsFile is one steps file. docs/problem-format.md says what the fields mean.
type stepsFile struct {
	Decisions [][]step `json:"decisions"`
}

type consolidationReport struct {
	Name             string   `json:"name"`
	Version          string   `json:"version"`
	FirstPassSeconds float64  `json:"firstPassSeconds"`
	NothingSeconds   *float64 `json:"nothingSeconds"`
	TotalSeconds     float64  `json:"totalSeconds"`
	Passes           int      `json:"passes"`
	PeakRSSMiB       *float64 `json:"peakRssMiB"`
}

// consolidate runs Karpenter's emptiness, multi-node and single-node consolidation on the nodes of
// a problem, carries each command out in the problem, and repeats until a pass finds nothing or the
// limit is over. Every pass sees fresh objects; only the pass is timed, from listing candidates to
// the command. Commands are not validated again after 15 seconds: nothing changes meanwhile.
func consolidate(path, out string, budget int, limit time.Duration, workers int, reserved bool) error {
	if path == "" {
		return errors.New("give a --problem")
	}
	if budget < 1 || budget > 100 {
		return errors.New("--budget is a percentage from 1 to 100")
	}
	read, err := readProblem(path)
	if err != nil {
		return err
	}
	for _, class := range read.Pods {
		if class.Replicas != 0 {
			return fmt.Errorf("%s: pods: %s: replicas: a fleet has no pending pods; set it to 0", path, class.Name)
		}
	}
	registerLabels(read)
	ctx := newContext("disruption", workers, reserved)
	file := stepsFile{Decisions: [][]step{}}
	made := consolidationReport{Name: read.Name, Version: version()}
	for total := time.Duration(0); total < limit; {
		hydrated, err := newWorld(ctx, read)
		if err != nil {
			return err
		}
		for _, pool := range hydrated.nodePools {
			pool.Spec.Disruption.Budgets = []v1.Budget{{Nodes: fmt.Sprintf("%d%%", budget)}}
		}
		runtime.GC()
		began := time.Now()
		command, err := hydrated.pass(ctx)
		took := time.Since(began)
		if err != nil {
			return err
		}
		if total == 0 {
			made.FirstPassSeconds = took.Seconds()
		}
		total += took
		made.TotalSeconds = total.Seconds()
		if command == nil {
			// A pass that its own timeout ended has not looked at every node.
			if took < disruption.SingleNodeConsolidationTimeoutDuration {
				seconds := took.Seconds()
				made.NothingSeconds = &seconds
			}
			break
		}
		carried, err := hydrated.newStep(read, command)
		if err != nil {
			return err
		}
		read.carryOut(carried, len(file.Decisions))
		file.Decisions = append(file.Decisions, []step{carried})
		fmt.Fprintf(os.Stderr, "pass %d: %d nodes removed, %d launched in %.3f s, %d nodes\n",
			len(file.Decisions)-1, len(carried.Remove), len(carried.Plan.Nodes), took.Seconds(), len(read.Nodes))
	}
	made.Passes = len(file.Decisions)
	made.PeakRSSMiB = peakMiB()
	content, err := json.Marshal(file)
	if err != nil {
		return err
	}
	if err := os.WriteFile(out, append(content, '\n'), 0o644); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(made)
}

// valid takes every command as it is.
type valid struct{}

func (valid) Validate(_ context.Context, command disruption.Command, _ time.Duration) (disruption.Command, error) {
	return command, nil
}

// pass is one pass of the disruption controller, up to the first command; nil if there is none.
func (w *world) pass(ctx context.Context) (*disruption.Command, error) {
	recorder := events.NewRecorder(&record.FakeRecorder{})
	cloud := &provider{types: w.types}
	timer := clock.RealClock{}
	provisioner := provisioning.NewProvisioner(w.client, recorder, cloud, w.cluster, timer, nil, nil)
	queue := disruption.NewQueue(w.client, recorder, w.cluster, timer, provisioner)
	shared := disruption.MakeConsolidation(timer, w.cluster, w.client, provisioner, cloud, recorder, queue)
	methods := []disruption.Method{
		disruption.NewEmptiness(shared, disruption.WithValidator(valid{})),
		disruption.NewMultiNodeConsolidation(shared, disruption.WithValidator(valid{})),
		disruption.NewSingleNodeConsolidation(shared, disruption.WithValidator(valid{})),
	}
	for _, method := range methods {
		candidates, totals, err := disruption.GetCandidatesWithTotals(ctx, w.cluster, w.client, recorder, timer, cloud,
			method.ShouldDisrupt, method.Class(), queue, nil)
		if err != nil {
			return nil, err
		}
		if len(candidates) == 0 {
			continue
		}
		if setter, ok := method.(disruption.NodePoolTotalsSetter); ok {
			setter.SetNodePoolTotals(totals)
		}
		budgets, err := disruption.BuildDisruptionBudgetMapping(ctx, w.cluster, timer, w.client, cloud, recorder, method.Reason())
		if err != nil {
			return nil, err
		}
		commands, err := method.ComputeCommands(ctx, budgets, candidates...)
		if err != nil {
			return nil, err
		}
		for i := range commands {
			if commands[i].Decision() != disruption.NoOpDecision {
				return &commands[i], nil
			}
		}
	}
	return nil, nil
}

// newStep turns a command into the steps file's form: the places are those of its own simulation.
func (w *world) newStep(read *problem, command *disruption.Command) (step, error) {
	results := command.Results
	results.NewNodeClaims = nil
	for _, replacement := range command.Replacements {
		if kind, _ := chosen(replacement.NodeClaim); kind == nil {
			// It prefers spot where the NodePool allows it, whether or not anything is sold as spot.
			return step{}, fmt.Errorf("nodePools: %s: no offering for a replacement with %s; require the capacity types that are sold",
				replacement.NodePoolName, replacement.Requirements.Get(v1.CapacityTypeLabelKey))
		}
		results.NewNodeClaims = append(results.NewNodeClaims, replacement.NodeClaim)
	}
	made := step{Plan: w.newPlan(read, results)}
	made.Plan.Unplaced = map[string]int{}
	for _, candidate := range command.Candidates {
		made.Remove = append(made.Remove, candidate.Name())
	}
	slices.Sort(made.Remove)
	return made, nil
}

// carryOut changes the nodes of the problem as nap's judge does.
func (p *problem) carryOut(carried step, decision int) {
	p.Nodes = slices.DeleteFunc(p.Nodes, func(node existingNode) bool { return slices.Contains(carried.Remove, node.Name) })
	for i := range p.Nodes {
		more := carried.Plan.Existing[p.Nodes[i].Name]
		if len(more) == 0 {
			continue
		}
		pods := maps.Clone(p.Nodes[i].Pods)
		if pods == nil {
			pods = map[string]int{}
		}
		for class, count := range more {
			pods[class] += count
		}
		p.Nodes[i].Pods = pods
	}
	for number, launch := range carried.Plan.Nodes {
		p.Nodes = append(p.Nodes, existingNode{
			Name:         fmt.Sprintf("launched-%d-%d", decision, number),
			NodePool:     launch.NodePool,
			InstanceType: launch.InstanceType,
			Zone:         launch.Zone,
			CapacityType: launch.CapacityType,
			Pods:         launch.Pods,
		})
	}
}
