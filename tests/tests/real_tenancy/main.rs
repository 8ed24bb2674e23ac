//! Tests of tenants in several accounts, each with a separate AWS identity. The definitions of Cluster API Provider AWS
//! and the API server are real. STS checks signatures, trust policies, external IDs and tokens.

mod accounts;
mod admin;
mod bed;
mod clusters;
mod explain;
mod floor;
mod identities;
mod logged;
mod moved;
mod options;
mod quota;
mod responder;
mod rights;
mod service_accounts;
mod tries;
mod unreadable;
