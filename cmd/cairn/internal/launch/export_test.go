package launch

// SecretVariable is secretVariable for tests.
const SecretVariable = secretVariable
