//! The command `doctor`: its first failing line shows the fault, and the cure works. The command `identify`, and the
//! plugin without a command.

mod bed;
mod causes;
mod checks;
mod clouds;
mod identify;
mod output;
mod unit;
