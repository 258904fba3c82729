//! Objects that the tests apply.

/// A ServiceAccount, and after it the namespace that it needs.
pub const ACCOUNT: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: operator, namespace: shop}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
";

/// Lets it list virtual machines in the namespace `erp`.
pub const BINDING: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: erp}
rules: [{apiGroups: [kubevirt.io], resources: [virtualmachines], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: erp}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: operator, namespace: shop}]
";

/// An APIService behind a Service of type ExternalName; PORT is to be replaced.
pub const AGGREGATED: &str = "
apiVersion: v1
kind: Service
metadata: {name: virt-api, namespace: erp}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.subresources.kubevirt.io}
spec:
  group: subresources.kubevirt.io
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 15
  insecureSkipTLSVerify: true
  service: {name: virt-api, namespace: erp, port: PORT}
";
