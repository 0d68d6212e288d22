#include "actors/messages/all.h"

// Compiles every message's inspection once, so that a mistake shows here and not in five actors.
