"""The forms, in the order in which they are listed and tried."""

from autoloop._forms.eager import Eager
from autoloop._forms.inline import Inline
from autoloop._forms.python import Python
from autoloop._forms.unroll import Unroll

FORMS = (Unroll(), Inline(), Python(), Eager())
