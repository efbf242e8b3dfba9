//! The world as nap meets it, in-process and on the paused clock.

mod cluster;
mod definitions;
mod scale;
