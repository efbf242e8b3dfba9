//! Tests of the engine from the outside: the nodes it launches, the pods on them, and its refusals.

mod bounds;
mod build;
mod consolidating;
mod consolidating_rules;
mod properties;
mod rules;
mod scenarios;
mod words;
