//! The selection of Cluster API objects.

use std::collections::BTreeMap;

use super::objects::WATCH_FILTER_LABEL;

/// The objects that the controller watches. The selection works as in Cluster API's controllers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// The namespace. `None` selects all namespaces.
    pub namespace: Option<String>,
    /// The required value of the label `cluster.x-k8s.io/watch-filter` on Clusters. `None` selects every Cluster. The
    /// objects that belong to a Cluster do not need the label.
    pub watch_filter: Option<String>,
}

impl Selection {
    /// Whether the watch filter selects an object that has these labels.
    pub(crate) fn has_label(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        self.has_value(labels.and_then(|labels| labels.get(WATCH_FILTER_LABEL)))
    }

    /// Whether the watch filter selects an object with this label value.
    pub(super) fn has_value(&self, value: Option<&String>) -> bool {
        self.watch_filter.is_none() || self.watch_filter.as_ref() == value
    }
}
