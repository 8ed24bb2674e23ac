//! TPMs in software, as clients and their owners see them.

mod certificates;
mod fixture;
mod machine;
mod proxy;
