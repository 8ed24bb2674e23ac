//! Times in the format of the API server, for `serde(with)`.

use std::time::SystemTime;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

/// Serializes the time. The API server does not accept a time after the year 9999, so such a time becomes the maximum.
pub(super) fn serialize<S: Serializer>(
    time: &SystemTime,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    Time(Timestamp::try_from(*time).unwrap_or(Timestamp::MAX)).serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<SystemTime, D::Error> {
    Time::deserialize(deserializer).map(|time| time.0.into())
}
