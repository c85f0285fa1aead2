#include <akunu.h>
