//! The API from outside: its algebra against tables and laws, and its definitions on an embedded server.

mod compatibility;
mod definitions;
mod laws;
mod spellings;
mod support;
mod tables;
