//! Tests of the command `doctor`: the first failing check shows the fault, and the hint works. Also tests the command
//! `identify`, and the plugin without a command.

mod bed;
mod causes;
mod checks;
mod clouds;
mod identify;
mod output;
mod unit;
