//! Tests of disasters that affect whole clusters: a management cluster that is disconnected from its own nodes, is
//! moved, or is unavailable. Other tests observe nodes in both clusters, starting with their first request. All API
//! servers and kubelets are real.

#[path = "../real_fleet/bed.rs"]
mod bed;

mod away;
mod break_glass;
mod ca;
mod instances;
mod lost;
mod outage;
mod rebuilt;
mod restarts;
mod restored;
mod story;
mod tokens;
mod witness;
