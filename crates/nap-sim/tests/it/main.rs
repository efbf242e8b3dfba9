//! The real Azure provider against the emulated Azure, mostly in one process on a paused clock.

mod emulator;
mod life;
mod market;
mod trouble;
mod world;
