//! What a user of the engine would notice: which machines are bought, for whom, and what is said
//! when there is none.

mod build;
mod properties;
mod rules;
mod scenarios;
mod words;
