//! The AWS identities of clusters, judged by the originals: the code of Cluster API Provider AWS and of AWS Controllers for
//! Kubernetes runs over the same objects, in the form that a real API server gives them, and STS tells what it was asked.
//!
//! Each difference is explained by a rule that is a row of the table in docs/tenancy.md, or fails the test.

mod ack;
mod capa;
mod judge;
mod objects;
mod random;
mod stored;
